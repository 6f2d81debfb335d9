"""Who may do what: `rights` names it, `keys` keeps shared access keys, `sas` reads tokens."""
