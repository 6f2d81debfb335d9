"""Rules: which messages a subscription takes, and how it changes them.

    text → sql_lexer → sql_parser → sql_tree → sql_compile → a function of a message

A filter or action is read once, when it is made; what is wrong with it is said then
(`InvalidFilter`). What remains for each message is a call of functions in functions, without any
tree. The language and where it differs from the real service: docs/sql-filters.md.
"""
