//! The records of clients that may reclaim after a restart, in the registry of the metadata store.

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

/// Records by client owner. A record's key is the client id, as owners may be longer than keys.
#[derive(Debug)]
pub(crate) struct Clients {
    namespace: Arc<Namespace<Embedded>>,
    owners: Mutex<HashMap<Bytes, u64>>,
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

impl Clients {
    /// The records that earlier starts left.
    pub(crate) fn load(namespace: Arc<Namespace<Embedded>>) -> Result<Self, Status> {
        let clients = Clients { namespace, owners: Mutex::default() };
        let owners = clients.all()?.into_iter().map(|record| (record.owner, record.clientid)).collect();
        *clients.owners() = owners;
        Ok(clients)
    }

    /// All records stored.
    pub(crate) fn all(&self) -> Result<Vec<ClientRecord>, Status> {
        let records = self.namespace.registry_list(PREFIX, 2 * CLIENTS_MAX)?;
        let decode = |(_, value): (_, Bytes)| {
            decode(value).map_err(|e| {
                tracing::error!("damaged record of a client in the metadata store: {e}");
                Status::Corrupt
            })
        };
        records.into_iter().map(decode).collect()
    }

    /// Stores a record, durably, in place of an older one of the same owner.
    pub(crate) async fn put(&self, now: Timestamp, record: ClientRecord) -> Result<(), Status> {
        self.namespace.registry_put(now, &key(record.clientid), Some(&encode(&record))).await?;
        let older = self.owners().insert(record.owner, record.clientid).filter(|older| *older != record.clientid);
        match older {
            Some(older) => self.namespace.registry_put(now, &key(older), None).await,
            None => Ok(()),
        }
    }

    /// Removes the record of an owner.
    pub(crate) async fn forget(&self, now: Timestamp, owner: &Bytes) -> Result<(), Status> {
        let clientid = self.owners().remove(owner);
        match clientid {
            Some(clientid) => self.namespace.registry_put(now, &key(clientid), None).await,
            None => Ok(()),
        }
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<Bytes, u64>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_these() {
        let record = ClientRecord { owner: Bytes::from_static(b"me"), clientid: 0x102 };
        let want: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 2, b'm', b'e', 0, 0];
        assert_eq!(encode(&record), want);
        assert_eq!(decode(Bytes::from_static(want)), Ok(record));
    }
}
