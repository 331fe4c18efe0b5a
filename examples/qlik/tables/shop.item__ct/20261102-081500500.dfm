{
  "dfmVersion": "1.1",
  "taskInfo": {
    "name": "shop to lake",
    "sourceEndpoint": "",
    "sourceEndpointType": "",
    "sourceEndpointUser": "",
    "replicationServer": "replicate1",
    "operation": "dataProduced"
  },
  "fileInfo": {
    "name": "20261102-081500500.csv",
    "extension": "csv",
    "location": "",
    "startWriteTimestamp": "2026-11-02T08:10:02.120",
    "endWriteTimestamp": "2026-11-02T08:15:00.500",
    "firstTransactionTimestamp": "2026-11-02T08:10:01.000",
    "lastTransactionTimestamp": "2026-11-02T08:13:30.000",
    "content": "changes",
    "recordCount": 4,
    "errorCount": 0
  },
  "formatInfo": {
    "format": "delimited",
    "options": {
      "fieldDelimiter": ",",
      "recordDelimiter": "\n",
      "nullValue": "",
      "quoteChar": "\"",
      "escapeChar": ""
    }
  },
  "dataInfo": {
    "sourceSchema": "shop",
    "sourceTable": "item",
    "targetSchema": "shop",
    "targetTable": "item",
    "tableVersion": 1,
    "columns": [
      {
        "ordinal": 1,
        "name": "header__change_seq",
        "type": "STRING",
        "length": 35,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 2,
        "name": "header__change_oper",
        "type": "STRING",
        "length": 1,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 3,
        "name": "header__change_mask",
        "type": "BYTES",
        "length": 128,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 4,
        "name": "header__stream_position",
        "type": "STRING",
        "length": 128,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 5,
        "name": "header__operation",
        "type": "STRING",
        "length": 12,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 6,
        "name": "header__transaction_id",
        "type": "STRING",
        "length": 32,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 7,
        "name": "header__timestamp",
        "type": "DATETIME",
        "length": 0,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 8,
        "name": "id",
        "type": "INT4",
        "length": 0,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 1
      },
      {
        "ordinal": 9,
        "name": "name",
        "type": "WSTRING",
        "length": 40,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 10,
        "name": "price",
        "type": "NUMERIC",
        "length": 0,
        "precision": 10,
        "scale": 2,
        "primaryKeyPos": 0
      }
    ]
  }
}
