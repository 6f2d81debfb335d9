"""The actions of SQS, one file a theme."""
