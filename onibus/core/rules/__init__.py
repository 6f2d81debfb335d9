"""Rules: which messages a subscription takes, and how it changes them.

    text → sql_lexer → sql_parser → sql_tree → sql_compile → a function of a message

A filter or action is parsed once, when it is created, and rejected then if it is invalid
(`InvalidFilter`). Each message costs a call of nested functions, without any tree.
docs/sql-filters.md describes the language and where it differs from Service Bus.
"""
