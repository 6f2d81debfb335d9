"""The data pipeline on Spark: a source and a sink of the format `onibus`, operators, jobs.

    spark = spark_session()
    rows = spark.read.format("onibus").option("url", "…").option("entity", "orders").load()

What Spark runs on other machines (reading and writing) asks a server over HTTP, in Arrow.
"""
