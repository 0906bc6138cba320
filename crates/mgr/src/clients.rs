//! Durable client records: the clients that may reclaim state after a restart of the mgr, in the registry of the
//! metadata store.

use bytes::Bytes;
use meta::{Embedded, Namespace};
use nfs::fs::ClientRecord;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use types::limits::{CLIENTS_MAX, OPAQUE_MAX};
use types::{Status, Timestamp};
use xdr::{Malformed, Reader, Writer};

const PREFIX: &[u8] = b"client/";
const VERSION: u32 = 1;

/// The client records, by client owner. The key of a record in the store is the client id, because a client owner may
/// be longer than a registry key. While a new record replaces an old one, the owner has both records. If the mgr
/// crashes then, both records stay until the next replacement.
#[derive(Debug)]
pub(crate) struct Clients {
    namespace: Arc<Namespace<Embedded>>,
    owners: Mutex<HashMap<Bytes, Vec<u64>>>,
}

fn key(clientid: u64) -> Vec<u8> {
    [PREFIX, &clientid.to_be_bytes()].concat()
}

fn encode(record: &ClientRecord) -> Bytes {
    let mut out = Writer::new();
    out.u32(VERSION);
    out.u64(record.clientid);
    out.opaque(&record.owner);
    out.finish().to_bytes()
}

fn decode(value: Bytes) -> Result<ClientRecord, Malformed> {
    let mut input = Reader::new(value);
    match input.u32()? {
        VERSION => {}
        value => return Err(Malformed::BadValue { what: "version of a client record", value }),
    }
    let record = ClientRecord { clientid: input.u64()?, owner: input.opaque(OPAQUE_MAX)? };
    input.finish()?;
    Ok(record)
}

/// Returns whether a registry key is that of a client record.
pub(crate) fn is_record(key: &[u8]) -> bool {
    key.starts_with(PREFIX)
}

/// Checks that a client record can be decoded; the error text says why not. Returns `None` if `key` is not the key of a
/// client record.
pub(crate) fn record(key: &[u8], value: Bytes) -> Option<Result<(), String>> {
    key.strip_prefix(PREFIX)?;
    Some(decode(value).map(drop).map_err(|e| e.to_string()))
}

impl Clients {
    /// Loads the client records that the mgr stored before its restart.
    pub(crate) fn load(namespace: Arc<Namespace<Embedded>>) -> Result<Self, Status> {
        let clients = Clients { namespace, owners: Mutex::default() };
        for record in clients.all()? {
            clients.owners().entry(record.owner).or_default().push(record.clientid);
        }
        Ok(clients)
    }

    /// Returns all stored client records. Skips a damaged record and logs an error: its client cannot reclaim.
    pub(crate) fn all(&self) -> Result<Vec<ClientRecord>, Status> {
        let records = self.namespace.registry_survey(PREFIX, 2 * CLIENTS_MAX)?;
        let whole = |(key, value): (Bytes, Option<Bytes>)| {
            let record = value.and_then(|value| decode(value).ok());
            if record.is_none() {
                tracing::error!(key = %key.escape_ascii(), "the record of a client cannot be read: run `weir fsck`");
            }
            record
        };
        Ok(records.into_iter().filter_map(whole).collect())
    }

    /// Stores a client record durably, and then removes all older records of the same owner.
    pub(crate) async fn put(&self, now: Timestamp, record: ClientRecord) -> Result<(), Status> {
        let ClientRecord { owner, clientid } = &record;
        self.namespace.registry_put(now, &key(*clientid), Some(&encode(&record))).await?;
        let older = {
            let mut owners = self.owners();
            let ids = owners.entry(owner.clone()).or_default();
            ids.retain(|id| id != clientid);
            std::mem::replace(ids, vec![*clientid])
        };
        self.remove(now, owner, older).await
    }

    /// Removes every record of a client owner durably.
    pub(crate) async fn forget(&self, now: Timestamp, owner: &Bytes) -> Result<(), Status> {
        let ids = self.owners().remove(owner).unwrap_or_default();
        self.remove(now, owner, ids).await
    }

    /// Removes the client records with these client ids. If the store cannot remove a record, the record also stays in
    /// this table in memory. While the record is on disk, its owner may reclaim opens and locks after a restart of the
    /// mgr.
    async fn remove(&self, now: Timestamp, owner: &Bytes, ids: Vec<u64>) -> Result<(), Status> {
        let mut outcome = Ok(());
        for id in ids {
            let removed = self.namespace.registry_put(now, &key(id), None).await;
            if removed.is_err() {
                self.owners().entry(owner.clone()).or_default().push(id);
            }
            outcome = outcome.and(removed);
        }
        outcome
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<Bytes, Vec<u64>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_owner_has_one_record_and_none_after_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Embedded::create(&dir.path().join("store"), [3; 16], meta::merge).unwrap();
        let (now, fsid) = (Timestamp::default(), types::Fsid([1; 16]));
        let format = meta::Format { fsid, now, cookie_key: [2; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
        let namespace = Arc::new(Namespace::format(engine, format).await.unwrap());
        let record = |clientid| ClientRecord { owner: Bytes::from_static(b"me"), clientid };
        // The state after a crash during the replacement of a record: the store has the new record of the owner, and
        // still has the old record.
        for clientid in [1, 2] {
            let value = encode(&record(clientid));
            namespace.registry_put(now, &key(clientid), Some(&value)).await.unwrap();
        }
        let clients = Clients::load(namespace.clone()).unwrap();
        clients.put(now, record(3)).await.unwrap();
        assert_eq!(clients.all().unwrap(), [record(3)]);
        clients.put(now, record(3)).await.unwrap();
        assert_eq!(clients.all().unwrap(), [record(3)]);
        namespace.registry_put(now, &key(2), Some(&encode(&record(2)))).await.unwrap();
        let clients = Clients::load(namespace).unwrap();
        clients.forget(now, &record(3).owner).await.unwrap();
        assert_eq!(clients.all().unwrap(), []);
        assert!(clients.owners().is_empty());
    }

    #[test]
    fn a_record_has_its_golden_bytes() {
        let record = ClientRecord { owner: Bytes::from_static(b"me"), clientid: 0x102 };
        let want: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 2, b'm', b'e', 0, 0];
        assert_eq!(encode(&record), want);
        assert_eq!(decode(Bytes::from_static(want)), Ok(record));
    }
}
