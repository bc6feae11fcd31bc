"""``holdfast bench``: how fast is Holdfast on *this* database, measured and checked in a corner of its own.

Unlike ``make bench``, which compares with a floor for those who work on Holdfast, this one is for those who run it.
"""
