#!/bin/sh
# Runs once, when the PostgreSQL container creates its data directory: creates the logins of roles.sql and sets their
# passwords from the environment.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --quiet --file "$(dirname "$0")/roles.sql"
for login in owner service worker app reader; do
    password=$(printenv "HOLDFAST_$(printf %s "$login" | tr '[:lower:]' '[:upper:]')_PASSWORD")
    # psql quotes :'password', so a quote in it does no harm. It reads the statement from stdin to fill in variables.
    echo "alter role holdfast_$login password :'password';" |
        psql --set ON_ERROR_STOP=1 --set password="$password" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --quiet
done
