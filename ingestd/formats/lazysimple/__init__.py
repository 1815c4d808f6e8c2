"""Text fields become values of columns, as Hive's LazySimpleSerDe reads them."""
