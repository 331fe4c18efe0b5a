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
    "name": "LOAD00000001.csv",
    "extension": "csv",
    "location": "",
    "startWriteTimestamp": "2026-11-02T08:00:00.120",
    "endWriteTimestamp": "2026-11-02T08:00:01.400",
    "firstTransactionTimestamp": null,
    "lastTransactionTimestamp": null,
    "content": "data",
    "recordCount": 2,
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
        "name": "id",
        "type": "INT4",
        "length": 0,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 1
      },
      {
        "ordinal": 2,
        "name": "name",
        "type": "WSTRING",
        "length": 40,
        "precision": 0,
        "scale": 0,
        "primaryKeyPos": 0
      },
      {
        "ordinal": 3,
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
