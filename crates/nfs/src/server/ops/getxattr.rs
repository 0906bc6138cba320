//! GETXATTR: returns the value of an extended attribute (RFC 8276 §8.4.1).

use crate::fs::FileSystem;
use crate::fs::access;
use crate::server::callbacks::Callbacks;
use crate::server::compound::{Answer, Body, Compound};
use bytes::Bytes;
use wire::nfs4::*;
use xdr::Writer;

/// The value of the extended attribute, as the result of GETXATTR (`GETXATTR4res`).
pub(super) struct Value(Bytes);

impl Body for Value {
    fn put(&self, out: &mut Writer) {
        out.opaque(&self.0);
    }
}

pub(super) async fn run<F: FileSystem, C: Callbacks>(
    cx: &mut Compound<'_, F, C>,
    args: GETXATTR4args,
) -> Answer<Value> {
    let file = cx.file()?;
    cx.check_access(file, access::XAREAD).await?;
    let value = cx.fs().getxattr(&cx.ctx, file, &args.gxa_name).await?;
    if value.len() + 8 > cx.room {
        return Err(NFS4ERR_TOOSMALL.into());
    }
    Ok(Value(value))
}
