"""The database: tables, migrations, queries, events. The only room that knows SQL."""
