//! Requests to single objects on the iods of a layout: calls, checksums of payloads, and the classes of errors.

use super::ObjectRun;
use crate::counters::{Tally, add};
use crate::devices::{Devices, Iod, Refused};
use crate::drivers::{Attempt, NotDone, Payload};
use crate::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;
use types::{ByteRange, IodId, Status};
use wire::native::*;
use xdr::{Segments, Writer, Xdr};

/// How often the client transfers a payload whose checksum does not match before it gives up.
const CHECKSUM_TRIES: u32 = 3;
/// The client searches for damaged bytes in steps of this many bytes, which is the block size of the iods' checksums.
const DAMAGE_STEP: u64 = 4096;

/// An object of a file: the index of its iod in the layout, and the capability for the object.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) index: usize,
    pub(super) cap: Capability,
}

/// The iods of a layout, in the order of the layout.
pub(super) struct Iods {
    ids: Vec<IodId>,
    iods: Vec<Arc<Iod>>,
    tally: Arc<Tally>,
}

pub(super) fn encode(args: &impl Xdr) -> Segments {
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

impl Iods {
    /// Returns the iods with these ids, without connecting to them.
    pub(super) fn new(devices: &Devices, ids: Vec<IodId>, tally: Arc<Tally>) -> Self {
        let iods = ids.iter().map(|id| devices.iod(*id)).collect();
        Iods { ids, iods, tally }
    }

    /// Returns the ids of the iods.
    pub(super) fn ids(&self) -> &[IodId] {
        &self.ids
    }

    /// Returns the iod with this index.
    pub(super) fn get(&self, index: usize) -> Option<&Arc<Iod>> {
        self.iods.get(index)
    }

    /// Returns the counters of the mount.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Calls a procedure that changes or describes an object.
    pub(super) async fn call<T: Xdr>(
        &self,
        target: &Target,
        procedure: Procedure,
        args: &impl Xdr,
        what: &str,
    ) -> Attempt<T> {
        let args = encode(args);
        self.call_for_bytes(target, procedure, |_| args.clone(), what).await.map(|(result, _)| result)
    }

    /// Calls an iod like [`Iods::call`], with a payload in the request or the reply. `args(checksums)` encodes the
    /// arguments, with checksums if `checksums` is true. The second result says whether the reply has checksums.
    async fn call_for_bytes<T: Xdr>(
        &self,
        target: &Target,
        procedure: Procedure,
        args: impl Fn(bool) -> Segments + Sync,
        what: &str,
    ) -> Attempt<(T, bool)> {
        let Some(iod) = self.iods.get(target.index) else {
            return Err(NotDone::Failed(Error::usage(format!("{what}: the layout has no object {}", target.index))));
        };
        // Iods of an older revision take an object of a log for one with a wrong capability.
        let revision = if target.cap.object.is_of_logs() { REVISION_LOGS } else { *REVISIONS.start() };
        iod.call((procedure, revision), args, what).await.map_err(|refusal| match refusal {
            Refused::Unanswered(error)
                if matches!(procedure, Procedure::Write | Procedure::Punch | Procedure::Register) =>
            {
                NotDone::Unanswered(error)
            }
            refusal => refused(refusal),
        })
    }

    /// Reads extents of an object; the reply covers them in order. All extents together must fit into one payload.
    pub(super) async fn read(&self, target: &Target, extents: &[ByteRange]) -> Attempt<Vec<ObjectRun>> {
        let extents: Vec<Extent> = extents.iter().map(|e| Extent { offset: e.offset, len: e.len as u32 }).collect();
        let wanted = extents.iter().map(|e| u64::from(e.len)).sum();
        let args = encode(&ReadArgs { cap: target.cap.clone(), extents });
        for attempt in 1.. {
            let (reply, checksums) = self.call_for_bytes(target, Procedure::Read, |_| args.clone(), "reading").await?;
            if checksums && let Err(error) = self.check(&reply, target.index) {
                if attempt == CHECKSUM_TRIES {
                    return Err(NotDone::Failed(error));
                }
                add(&self.tally.retries, 1);
                continue;
            }
            add(&self.tally.read_direct, reply.data.len() as u64);
            let id = self.ids[target.index];
            let odd = || Error::protocol(format!("iod {id} returned other bytes than requested"));
            return runs(reply, wanted).ok_or_else(|| NotDone::Failed(odd()));
        }
        unreachable!("the loop returns at its last attempt")
    }

    /// Writes the payload to extents of an object; durably if `stable`. `least()` is the length of the object according
    /// to the mgr.
    pub(super) async fn write(
        &self,
        target: &Target,
        extents: &[ByteRange],
        payload: &Payload,
        (stable, least): (bool, &(dyn Fn() -> u64 + Sync)),
    ) -> Attempt<WriteReply> {
        let lengths: Vec<u64> = extents.iter().map(|extent| extent.len).collect();
        let args = |checksums: bool| {
            let sums = if checksums { payload.checksums(&lengths) } else { Cow::default() };
            let sums = sums.iter().copied().chain(std::iter::repeat(0));
            let extent = |(e, crc32c): (&ByteRange, u32)| WriteExtent { offset: e.offset, len: e.len as u32, crc32c };
            let extents = extents.iter().zip(sums).map(extent).collect();
            let head = WriteHead { cap: target.cap.clone(), stable, least: least(), extents };
            encode(&WriteArgs { head, data: payload.data.clone() })
        };
        let mut attempt = 1;
        loop {
            add(&self.tally.written_direct, payload.data.len() as u64);
            match self.call_for_bytes(target, Procedure::Write, args, "writing").await {
                Ok((reply, _)) => return Ok(reply),
                Err(NotDone::Failed(e)) if e.is(Status::BadChecksum) && attempt < CHECKSUM_TRIES => {
                    add(&self.tally.retries, 1);
                    attempt += 1;
                }
                Err(not_done) => return Err(not_done),
            }
        }
    }

    /// Sends COMMIT for an object. The earlier writes that returned the verifier of the reply are now durable.
    pub(super) async fn commit(&self, target: &Target) -> Attempt<CommitReply> {
        self.call(target, Procedure::Commit, &ObjectArgs { cap: target.cap.clone() }, "committing").await
    }

    /// Returns the first damaged range of an object after a READ of these extents failed with a checksum error.
    pub(super) async fn damaged(&self, target: &Target, extents: &[ByteRange]) -> Option<ByteRange> {
        let mut damaged: Option<ByteRange> = None;
        for extent in extents {
            let mut at = extent.offset;
            while at < extent.end() {
                let len = (extent.end() - at).min(DAMAGE_STEP - at % DAMAGE_STEP);
                let extents = vec![Extent { offset: at, len: len as u32 }];
                let args = ReadArgs { cap: target.cap.clone(), extents };
                let bad = match self.call::<ReadReply>(target, Procedure::Read, &args, "reading").await {
                    Err(NotDone::Failed(e)) => e.is(Status::Corrupt),
                    _ => false,
                };
                match &mut damaged {
                    Some(range) if bad && range.end() == at => range.len += len,
                    None if bad => damaged = Some(ByteRange { offset: at, len }),
                    Some(_) => return damaged,
                    None => {}
                }
                at += len;
            }
        }
        damaged
    }

    /// Returns the error of a read that found damaged bytes in this range of the file.
    pub(super) fn damage(&self, index: usize, file: ByteRange) -> Error {
        let what = format!("bytes {} to {} on iod {}", file.offset, file.end() - 1, self.ids[index]);
        Error::status(Status::Corrupt, what)
    }

    fn check(&self, reply: &ReadReply, index: usize) -> Result<()> {
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
