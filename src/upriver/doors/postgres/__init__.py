"""The door that speaks PostgreSQL's wire protocol."""
