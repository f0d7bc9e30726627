"""The only SQL: tables, transactions and rows."""
