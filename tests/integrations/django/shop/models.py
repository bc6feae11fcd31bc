from __future__ import annotations

from django.db import models


class Order(models.Model):
    email = models.CharField(max_length=100)
    state = models.CharField(max_length=20, default="new")
