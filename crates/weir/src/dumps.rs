//! Report of a command that has written or restored a dump of a metadata store.

use crate::failure::Failure;
use crate::show;
use mgr::Dumped;
use serde::Serialize;
use std::path::Path;
use types::Timestamp;

/// The report of a written or restored dump as one JSON object.
#[derive(Serialize)]
struct JsonDump<'a> {
    file: show::JsonPath,
    fsid: String,
    store: String,
    taken: String,
    records: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir: Option<&'a str>,
}

/// Prints the report of a dump, which the command has written or restored.
pub fn tell(what: &str, file: &Path, dumped: &Dumped, dir: Option<&Path>, json: bool) -> Result<(), Failure> {
    let bytes = std::fs::metadata(file).map(|meta| meta.len())?;
    let taken = Timestamp { secs: i64::try_from(dumped.head.created).unwrap_or(i64::MAX), nanos: 0 };
    let taken = show::time(taken);
    if json {
        let dir = dir.map(|dir| dir.display().to_string());
        return show::json(&JsonDump {
            file: file.as_os_str().as_encoded_bytes().into(),
            fsid: dumped.head.fsid.to_string(),
            store: dumped.head.store.to_string(),
            taken,
            records: dumped.records,
            bytes,
            dir: dir.as_deref(),
        });
    }
    let store = dumped.head.store;
    show::line(&format!("{what} {} records of the metadata store {store} as of {taken}", dumped.records))
}
