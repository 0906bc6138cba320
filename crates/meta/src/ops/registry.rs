//! The registry: small records that the mgr keeps in the metadata store, such as its registered iods.

use super::Plan;
use crate::engine::{Value, Walk};
use crate::schema;
use crate::tx::Tx;
use bytes::Bytes;
use types::{Status, limits};

fn check(key: &[u8]) -> Result<(), Status> {
    if key.is_empty() || key.len() > limits::REGISTRY_KEY_MAX { Err(Status::Inval) } else { Ok(()) }
}

/// Returns the value of the registry record `key`; `None` if there is none.
pub(crate) fn read(tx: &Tx<'_>, key: &[u8]) -> Result<Option<Value>, Status> {
    check(key)?;
    tx.get(&schema::registry_key(key))
}

/// Returns up to `max` registry records whose keys begin with `prefix`, in key order.
pub(crate) fn list(tx: &Tx<'_>, prefix: &[u8], max: usize) -> Result<Vec<(Bytes, Value)>, Status> {
    let mut records = Vec::new();
    let from = schema::registry_key(prefix);
    tx.scan(&from, &schema::past_all(&from), max, &mut |key, value| {
        match key.get(1..) {
            Some(key) if key.starts_with(prefix) => {
                records.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            }
            _ => return Ok(Walk::Stop),
        }
        Ok(Walk::On)
    })?;
    Ok(records)
}

/// Returns up to `max` registry records as [`list`] does, but also damaged records, with `None` as value.
pub(crate) fn survey(tx: &Tx<'_>, prefix: &[u8], max: usize) -> Result<Vec<(Bytes, Option<Value>)>, Status> {
    let mut records = Vec::new();
    let from = schema::registry_key(prefix);
    tx.survey(&from, &schema::past_all(&from), max, &mut |key, value| match key.get(1..) {
        Some(key) if key.starts_with(prefix) => {
            records.push((Bytes::copy_from_slice(key), value.map(Bytes::copy_from_slice)));
            Walk::On
        }
        _ => Walk::Stop,
    })?;
    Ok(records)
}

/// Sets the registry record `key` to `value`, or removes the record if `value` is `None`.
pub(crate) fn plan(tx: &mut Tx<'_>, key: &[u8], value: Option<&Bytes>) -> Plan<()> {
    check(key)?;
    // A nearly full store accepts this batch: registry records (of clients, iods and exports) are few and short, and
    // without these records no client could connect to delete files.
    tx.frees();
    match value {
        Some(value) if value.len() > limits::VALUE_MAX => return Err(Status::TooBig),
        Some(value) => tx.put(schema::registry_key(key), value.clone()),
        None => tx.delete(schema::registry_key(key)),
    }
    super::known(())
}
