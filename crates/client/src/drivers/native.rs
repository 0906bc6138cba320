//! The native layout driver: reads and writes objects on iods with the native protocol.

mod file_ranges;
#[cfg(test)]
mod fixture;
mod lengths;
mod object_run;

#[cfg(test)]
pub(super) use fixture::MemoryIods;
pub(crate) use object_run::ObjectRun;

use super::{Attempt, Driver, Layout, NotDone, Payload, Written};
use crate::counters::{Tally, add};
use crate::devices::{Devices, Iod, Refused};
use crate::short_circuit::{Loans, ObjectLoan, Read};
use crate::{Error, Result};
use async_trait::async_trait;
use layout::Distribution;
use layout::kinds::native as kind;
use lengths::Lengths;
use net::clock::unix_now;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{ByteRange, Generation, IodId, ObjectId, Status, Verifier};
use wire::native::*;
use xdr::{Segments, Writer, Xdr};

/// How often the client transfers a payload whose checksum does not match before it gives up.
const CHECKSUM_TRIES: u32 = 3;
/// The client searches for damaged bytes in steps of this many bytes, which is the block size of the iods' checksums.
const DAMAGE_STEP: u64 = 4096;

pub(super) struct Native {
    devices: Arc<Devices>,
    tally: Arc<Tally>,
}

impl Native {
    pub(super) fn new(devices: Arc<Devices>, tally: Arc<Tally>) -> Self {
        Native { devices, tally }
    }
}

#[async_trait]
impl Driver for Native {
    type Kind = kind::Native;

    async fn attach(&self, body: kind::Body) -> Result<Arc<dyn Layout>> {
        let bad = |e: &dyn std::fmt::Display| Error::protocol(format!("the mgr sent a malformed native layout: {e}"));
        let distribution = body.distribution().map_err(|e| bad(&e))?;
        let cap = Capability::from_bytes(&body.capability).map_err(|e| bad(&e))?;
        let caps = body.authenticators.iter().map(|mac| Capability { mac: *mac, ..cap.clone() }).collect();
        let old_from = Instant::now() + Duration::from_secs(body.secs.into()) / 2;
        let iods: Vec<_> = body.devices.iter().map(|id| self.devices.iod(*id)).collect();
        let loans_by_object = iods.iter().map(|_| Arc::default()).collect();
        let loans = self.devices.loans().clone();
        let tally = self.tally.clone();
        let (object, ids, lengths) = (body.object, body.devices, Lengths::new(&distribution, body.whole));
        Ok(Arc::new(Objects {
            distribution,
            object,
            lengths,
            generation: cap.generation,
            caps,
            old_from,
            ids,
            iods,
            loans_by_object,
            loans,
            tally,
        }))
    }
}

/// A native layout: the objects of one file on their iods.
struct Objects {
    distribution: Distribution,
    object: ObjectId,
    lengths: Lengths,
    generation: Generation,
    /// The capability for each iod, in the order of the objects.
    caps: Vec<Capability>,
    /// When the client should get new capabilities: at half of their lifetime.
    old_from: Instant,
    ids: Vec<IodId>,
    iods: Vec<Arc<Iod>>,
    /// The loan state of each object, held while this layout is in use.
    loans_by_object: Vec<Arc<ObjectLoan>>,
    loans: Arc<Loans>,
    tally: Arc<Tally>,
}

fn encode(args: &impl Xdr) -> Segments {
    let mut out = Writer::new();
    args.encode(&mut out);
    out.finish()
}

/// Converts the error of a request to an iod to the error of the driver; this is [`NotDone::Stale`] if the request may
/// succeed under a new layout.
fn refused(refusal: Refused) -> NotDone {
    match refusal {
        Refused::Unreachable(error) | Refused::Unanswered(error) => NotDone::NotAttempted(error),
        Refused::Answer(error) => match error.as_status() {
            // An iod returns the status `Lost` if durable bytes are missing. If the file was truncated after the mgr
            // granted this layout, the bytes are not lost, and the request can succeed under a new layout.
            Some(Status::CapExpired | Status::CapRefused | Status::Fenced | Status::Lost) => NotDone::Stale(error),
            _ => NotDone::Failed(error),
        },
    }
}

impl Objects {
    /// Returns the capability for the object with this index.
    fn cap(&self, index: usize) -> Attempt<Capability> {
        let none = || NotDone::Failed(Error::usage(format!("the layout has no object {index}")));
        self.caps.get(index).cloned().ok_or_else(none)
    }

    async fn call<T: Xdr>(&self, index: usize, procedure: Procedure, args: &Segments, what: &str) -> Attempt<T> {
        self.call_for_bytes(index, procedure, |_| args.clone(), what).await.map(|(result, _)| result)
    }

    /// Calls an iod like [`Objects::call`], with a payload in the request or the reply. `args(checksums)` encodes the
    /// arguments, with checksums if `checksums` is true. The second result says whether the reply has checksums.
    async fn call_for_bytes<T: Xdr>(
        &self,
        index: usize,
        procedure: Procedure,
        args: impl Fn(bool) -> Segments + Sync,
        what: &str,
    ) -> Attempt<(T, bool)> {
        let Some(iod) = self.iods.get(index) else {
            return Err(NotDone::Failed(Error::usage(format!("{what}: the layout has no object {index}"))));
        };
        iod.call(procedure, args, what).await.map_err(|refusal| match refusal {
            Refused::Unanswered(error) if matches!(procedure, Procedure::Write | Procedure::Punch) => {
                NotDone::Unanswered(error)
            }
            refusal => refused(refusal),
        })
    }

    /// Reads from the file that the iod lent. Returns `None` if there is no loan, or if the client must send the read
    /// to the iod. Requests a loan if the object is read often enough.
    fn read_short_circuit(&self, index: usize, extents: &[ByteRange]) -> Option<Vec<ObjectRun>> {
        let (iod, object_loan) = (self.iods.get(index)?, self.loans_by_object.get(index)?);
        if !iod.may_lend() {
            return None;
        }
        match object_loan.read(unix_now(), extents) {
            Read::Done(found) => {
                let bytes = found.iter().map(ObjectRun::data_len).sum();
                add(&self.tally.read_direct, bytes);
                add(&self.tally.read_short_circuit, bytes);
                add(&self.tally.short_circuit_reads, 1);
                return Some(found);
            }
            Read::Ask => {}
            Read::AskAndBorrow => {
                let cap = self.caps.get(index)?.clone();
                let (iod, loans, object_loan) = (iod.clone(), self.loans.clone(), Arc::downgrade(object_loan));
                net::task::spawn(async move { loans.replied(&object_loan, iod.borrow(&cap).await) });
            }
        }
        None
    }

    /// Finds the damaged bytes after a READ of these extents failed with a checksum error, and adds their file range to
    /// the error.
    async fn locate(&self, index: usize, extents: &[Extent], error: Error) -> Error {
        let mut damaged: Option<ByteRange> = None;
        for extent in extents {
            let end = extent.offset.saturating_add(extent.len.into());
            let mut at = extent.offset;
            while at < end {
                let len = (end - at).min(DAMAGE_STEP - at % DAMAGE_STEP);
                let Ok(cap) = self.cap(index) else { return error };
                let args = ReadArgs { cap, extents: vec![Extent { offset: at, len: len as u32 }] };
                let bad = match self.call::<ReadReply>(index, Procedure::Read, &encode(&args), "reading").await {
                    Err(NotDone::Failed(e)) => e.is(Status::Corrupt),
                    _ => false,
                };
                match &mut damaged {
                    Some(range) if bad && range.end() == at => range.len += len,
                    None if bad => damaged = Some(ByteRange { offset: at, len }),
                    Some(_) => return self.damage(index, damaged, error),
                    None => {}
                }
                at += len;
            }
        }
        self.damage(index, damaged, error)
    }

    fn damage(&self, index: usize, damaged: Option<ByteRange>, error: Error) -> Error {
        let file = damaged.and_then(|range| self.distribution.file_ranges(index, range).next());
        match file {
            Some(file) => {
                let what = format!("bytes {} to {} on iod {}", file.offset, file.end() - 1, self.ids[index]);
                Error::status(Status::Corrupt, what)
            }
            None => error,
        }
    }

    fn check(&self, reply: &ReadReply, index: usize) -> std::result::Result<(), Error> {
        let mut at = 0;
        for piece in reply.head.pieces.iter().filter(|p| p.kind == PieceKind::Data) {
            let end = at + piece.len as usize;
            if crc32c(&reply.data[at..end]) != piece.crc32c {
                let what = format!("reading from iod {}", self.ids[index]);
                return Err(Error::status(Status::BadChecksum, what));
            }
            at = end;
        }
        Ok(())
    }
}

/// Converts the pieces of a READ reply to byte ranges of the object. Returns `None` unless the reply covers exactly
/// `wanted` bytes.
fn runs(reply: ReadReply, wanted: u64) -> Option<Vec<ObjectRun>> {
    let mut data = reply.data;
    let mut found = Vec::with_capacity(reply.head.pieces.len());
    for piece in &reply.head.pieces {
        found.push(match piece.kind {
            PieceKind::Data => ObjectRun::Data(data.split_to(piece.len as usize)),
            PieceKind::Hole => ObjectRun::Hole(u64::from(piece.len)),
            PieceKind::Beyond => ObjectRun::Beyond(u64::from(piece.len)),
        });
    }
    (found.iter().map(ObjectRun::len).sum::<u64>() == wanted).then_some(found)
}

/// Requests for single objects; `index` is the index of the object in the distribution.
impl Objects {
    /// Reads extents of an object; the reply covers them in order. All extents together must fit into one payload.
    async fn read_object(&self, index: usize, extents: &[ByteRange]) -> Attempt<Vec<ObjectRun>> {
        if let Some(found) = self.read_short_circuit(index, extents) {
            return Ok(found);
        }
        let extents: Vec<Extent> = extents.iter().map(|e| Extent { offset: e.offset, len: e.len as u32 }).collect();
        let wanted = extents.iter().map(|e| u64::from(e.len)).sum();
        let args = encode(&ReadArgs { cap: self.cap(index)?, extents: extents.clone() });
        for attempt in 1.. {
            let (reply, checksums) =
                match self.call_for_bytes(index, Procedure::Read, |_| args.clone(), "reading").await {
                    Err(NotDone::Failed(e)) if e.is(Status::Corrupt) => {
                        return Err(NotDone::Failed(self.locate(index, &extents, e).await));
                    }
                    other => other?,
                };
            if checksums && let Err(error) = self.check(&reply, index) {
                if attempt == CHECKSUM_TRIES {
                    return Err(NotDone::Failed(error));
                }
                add(&self.tally.retries, 1);
                continue;
            }
            add(&self.tally.read_direct, reply.data.len() as u64);
            let odd = || Error::protocol(format!("iod {} returned other bytes than requested", self.ids[index]));
            return runs(reply, wanted).ok_or_else(|| NotDone::Failed(odd()));
        }
        unreachable!("the loop returns at its last attempt")
    }

    /// Writes the payload to extents of an object; durably if `stable`.
    async fn write_object(
        &self,
        index: usize,
        extents: &[ByteRange],
        payload: &Payload,
        stable: bool,
    ) -> Attempt<Written> {
        let cap = self.cap(index)?;
        let lengths: Vec<u64> = extents.iter().map(|extent| extent.len).collect();
        let args = |checksums: bool| {
            let sums = if checksums { payload.checksums(&lengths) } else { Cow::default() };
            let sums = sums.iter().copied().chain(std::iter::repeat(0));
            let extent = |(e, crc32c): (&ByteRange, u32)| WriteExtent { offset: e.offset, len: e.len as u32, crc32c };
            let extents = extents.iter().zip(sums).map(extent).collect();
            let least = self.distribution.object_size(self.lengths.whole(), index);
            let head = WriteHead { cap: cap.clone(), stable, least, extents };
            encode(&WriteArgs { head, data: payload.data.clone() })
        };
        let mut attempt = 1;
        loop {
            add(&self.tally.written_direct, payload.data.len() as u64);
            match self.call_for_bytes::<WriteReply>(index, Procedure::Write, args, "writing").await {
                Ok((reply, _)) => {
                    if reply.stable {
                        self.lengths.learn(index, reply.size);
                    }
                    return Ok(Written { verifier: reply.verifier, stable: reply.stable });
                }
                Err(NotDone::Failed(e)) if e.is(Status::BadChecksum) && attempt < CHECKSUM_TRIES => {
                    add(&self.tally.retries, 1);
                    attempt += 1;
                }
                Err(not_done) => return Err(not_done),
            }
        }
    }

    /// Sends COMMIT for an object, and returns the verifier of the reply. The earlier writes that returned the same
    /// verifier are now durable.
    async fn commit_object(&self, index: usize) -> Attempt<Verifier> {
        let args = encode(&ObjectArgs { cap: self.cap(index)? });
        let reply: CommitReply = self.call(index, Procedure::Commit, &args, "committing").await?;
        self.lengths.learn(index, reply.size);
        Ok(reply.verifier)
    }

    /// Punches a hole into an object.
    async fn punch_object(&self, index: usize, range: ByteRange) -> Attempt<()> {
        let args = encode(&PunchArgs { cap: self.cap(index)?, offset: range.offset, len: range.len });
        self.call::<Nothing>(index, Procedure::Punch, &args, "punching a hole").await.map(|_| ())
    }

    /// Returns the offset of the first data byte, or of the first byte in a hole, at or after `offset`. The end of the
    /// object counts as a hole.
    async fn seek_object(&self, index: usize, offset: u64, what: SeekWhat) -> Attempt<Option<u64>> {
        let args = encode(&SeekArgs { cap: self.cap(index)?, offset, what });
        self.call::<SeekReply>(index, Procedure::Seek, &args, "seeking").await.map(|reply| reply.offset)
    }

    /// Returns the size and the allocated bytes of the object.
    async fn size_object(&self, index: usize) -> Attempt<SizeReply> {
        let args = encode(&ObjectArgs { cap: self.cap(index)? });
        self.call(index, Procedure::Size, &args, "asking for the size").await
    }
}
