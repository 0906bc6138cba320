//! The registry of iods in the metadata store: number, identity and last addresses of each iod.

use bytes::Bytes;
use layout::kinds::native::{ADDRESS_MAX, ADDRESSES_MAX, BOOT_ID_MAX, Local, SOCKET_PATH_MAX};
use meta::{Embedded, Namespace};
use types::{IodId, Status, Timestamp};
use xdr::{Malformed, Reader, Writer, Xdr};

const PREFIX: &[u8] = b"iod/";
const VERSION: u32 = 1;

/// The registry record of an iod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Registered {
    /// The number of the iod. No other iod ever gets this number.
    pub(crate) number: u16,
    /// The identity of the iod.
    pub(crate) id: IodId,
    /// The TCP addresses at which the mgr last reached the iod, each `host:port`.
    pub(crate) tcp: Vec<String>,
    /// The iod's Unix socket for processes on the same host, as last reported by the iod.
    pub(crate) local: Option<Local>,
}

fn text(input: &mut Reader, max: usize) -> Result<String, Malformed> {
    let bytes = input.opaque(max)?;
    std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| Malformed::Invalid("text that is not UTF-8"))
}

fn put_text(out: &mut Writer, text: &str) {
    out.opaque(&Bytes::copy_from_slice(text.as_bytes()));
}

impl Xdr for Registered {
    fn encode(&self, out: &mut Writer) {
        out.u32(VERSION);
        out.u32(self.number.into());
        out.fixed(&self.id.0);
        out.array(&self.tcp, |out, address| put_text(out, address));
        out.optional(self.local.as_ref(), |out, local| {
            put_text(out, &local.boot_id);
            out.opaque(&local.path);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        match input.u32()? {
            VERSION => {}
            value => return Err(Malformed::BadValue { what: "version of an iod record", value }),
        }
        let value = input.u32()?;
        let number = u16::try_from(value).map_err(|_| Malformed::BadValue { what: "number of an iod", value })?;
        let id = IodId(input.fixed()?);
        let tcp = input.array(ADDRESSES_MAX, |input| text(input, ADDRESS_MAX))?;
        let local = input
            .optional(|input| Ok(Local { boot_id: text(input, BOOT_ID_MAX)?, path: input.opaque(SOCKET_PATH_MAX)? }))?;
        Ok(Registered { number, id, tcp, local })
    }
}

/// Returns the records of all iods that were ever registered.
pub(super) fn all(namespace: &Namespace<Embedded>) -> Result<Vec<Registered>, Status> {
    let records = namespace.registry_list(PREFIX, usize::from(u16::MAX) + 1)?;
    let decode = |(_, value): (_, Bytes)| {
        Registered::from_bytes(&value).map_err(|e| {
            tracing::error!("damaged record of an iod in the metadata store: {e}");
            Status::Corrupt
        })
    };
    records.into_iter().map(decode).collect()
}

/// Decodes a registry record: returns the number of the iod, or why the record cannot be decoded. Returns `None` if the
/// key is not that of an iod record.
pub(crate) fn record(key: &[u8], value: &Bytes) -> Option<Result<u16, String>> {
    let id = key.strip_prefix(PREFIX)?;
    Some(match Registered::from_bytes(value) {
        Ok(iod) if iod.id.0[..] == *id => Ok(iod.number),
        Ok(_) => Err("it names another iod than its key".to_owned()),
        Err(e) => Err(e.to_string()),
    })
}

/// Stores the registry record of an iod durably.
pub(super) async fn put(namespace: &Namespace<Embedded>, iod: &Registered) -> Result<(), Status> {
    let key = [PREFIX, &iod.id.0].concat();
    let now = Timestamp::from(net::clock::now());
    namespace.registry_put(now, &key, Some(&iod.to_bytes())).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate;

    #[test]
    fn a_record_has_its_golden_bytes() {
        let local = Some(Local { boot_id: "b".into(), path: "/s".into() });
        let iod = Registered { number: 258, id: IodId([5; 16]), tcp: vec!["h:1".into()], local };
        let mut want = vec![0, 0, 0, 1, 0, 0, 1, 2];
        want.extend([5; 16]);
        want.extend([0, 0, 0, 1, 0, 0, 0, 3, b'h', b':', b'1', 0]);
        want.extend([0, 0, 0, 1, 0, 0, 0, 1, b'b', 0, 0, 0, 0, 0, 0, 2, b'/', b's', 0, 0]);
        assert_eq!(iod.to_bytes(), want);
        assert_eq!(Registered::from_bytes(&want.into()), Ok(iod));
    }
    #[test]
    fn a_damaged_record_is_refused_or_encodes_to_the_same_bytes() {
        let local = Some(Local { boot_id: "b".into(), path: "/s".into() });
        let iod = Registered { number: 258, id: IodId([5; 16]), tcp: vec!["h:1".into(), "i:2".into()], local };
        let bytes = iod.to_bytes();
        for seed in 0..5000 {
            if let Ok(read) = Registered::from_bytes(&mutate::mutate(&bytes, seed).into()) {
                assert_eq!(Registered::from_bytes(&read.to_bytes()), Ok(read));
            }
        }
    }
}
