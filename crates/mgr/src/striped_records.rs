//! Layout records of striped objects, which striped files and the striped bases of log files use.

use crate::iods::Iods;
use crate::kinds::Known;
use crate::proxy::Objects;
use layout::Policy;
use layout::kinds::native::{KIND as STRIPED, Record};
use meta::Layout;
#[cfg(feature = "planted")]
use types::planted::{self, Planted};
use types::{LOG_STREAMS, Status};
use xdr::Xdr;

/// Makes the layout record of a new striped file, or of the striped base of a new log file. Fails with `Delay` while too
/// few iods are up.
pub(crate) fn new_record(iods: &Iods, policy: &Policy) -> Result<Record, Status> {
    let numbers = iods.for_new_files();
    // While too few iods are up for the copies that the policy requires, fail with `Delay` instead of creating
    // fewer copies.
    if numbers.len() < (policy.mirrors as usize).max(1) {
        return Err(Status::Delay);
    }
    let count = (policy.stripe_count as usize, policy.mirrors);
    let record = Record::rotated(policy.distribution, policy.stripe_unit, &numbers, count, iods.next_first());
    record.map_err(|e| {
        tracing::error!("cannot make a layout: {e}");
        Status::ServerFault
    })
}

/// Returns the layout of the next stream of striped objects, on the iods `iods`. Fails with `NoSpc` if there is no next
/// stream: the streams of data logs follow the last one.
pub(crate) fn next_layout(record: &Record, iods: &[u16]) -> Result<Layout, Status> {
    let stream = record.stream.checked_add(1).filter(|stream| *stream < LOG_STREAMS).ok_or(Status::NoSpc)?;
    #[cfg(feature = "planted")]
    let stream = if planted::is_planted(Planted::SameStream) { record.stream } else { stream };
    Ok(Layout { kind: STRIPED, body: Record { stream, iods: iods.to_vec(), ..record.clone() }.to_bytes() })
}

/// Returns the new striped objects that a layout of [`next_layout`] names.
pub(crate) fn new_objects<'a>(iods: &'a Iods, known: Known, to: &Layout) -> Result<Objects<'a>, Status> {
    let record = Record::from_bytes(&to.body).ok().filter(|_| to.kind == STRIPED).ok_or(Status::Corrupt)?;
    Objects::new(iods, known, record).map_err(|_| Status::Corrupt)
}
