//! The PULL procedure: the iod copies bytes from an object of another iod, or of its own, into one of its objects,
//! without sending the bytes to the caller.
//!
//! Two iods that pull from each other cannot deadlock. A PULL waits only for READs, a READ waits for no PULL, and PULLs
//! have their own slots and memory. A PULL has a time limit of a few seconds, because later requests of its connection
//! wait for it.

mod source;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use types::Status;
use types::limits::{FILE_SIZE_MAX, PAYLOAD_MAX};
use wire::native::{
    Extent, Failure, MGR_SESSION, PULL_MAX, PULL_SESSION, PieceKind, PullArgs, PullExtent, PullReply, Rights,
    WriteExtent,
};

use super::connection::Connection;
use super::socket::Channel;
use super::volume::Volume;
use crate::counters::Counters;
use crate::store::{Object, Open, ReadPlan};
use source::Source;

/// Time limit for all connects and READs of one PULL at the source iod.
const PATIENCE: Duration = Duration::from_secs(4);

/// The reason why a PULL ends early.
enum Stop {
    /// The source object cannot be read. The target object has all bytes that the iod copied before the error.
    Source(String),
    /// The target object cannot be written.
    Target(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Target(failure)
    }
}

impl<C: Channel> Connection<C> {
    /// Executes PULL and returns its result; the caller sends the reply.
    pub(super) fn pull(&mut self, args: PullArgs) -> Result<PullReply, Failure> {
        // Only the mgr may request a PULL. Otherwise any client could make this host connect to arbitrary addresses.
        if self.session.as_ref().is_none_or(|session| session.number() != MGR_SESSION) {
            return Err(Status::CapRefused.into());
        }
        let (target, generation) = self.object(&args.cap, Rights::WRITE)?;
        let volume = self.volume()?.clone();
        let store = &volume.store;
        let cap = &args.source.cap;
        let here = args.source.iod == store.iod();
        if here {
            // This iod checks the capability for the source object only if this iod has the source object. Otherwise
            // the source iod checks the capability.
            volume.judge.object(cap, PULL_SESSION, Rights::READ)?;
        }
        if here && cap.object == args.cap.object {
            return Err(Status::Inval.into());
        }
        if args.len() > PULL_MAX {
            return Err(Status::TooBig.into());
        }
        let fits = |at: u64, len: u32| at.checked_add(len.into()).is_some_and(|end| end <= FILE_SIZE_MAX);
        if args.extents.iter().any(|e| !fits(e.from, e.len) || !fits(e.to, e.len)) {
            return Err(Status::FBig.into());
        }
        if !here && !volume.pulls.sockets {
            return Err(Status::NotSupp.into());
        }
        let Some(_place) = volume.pulls.begin() else {
            Counters::add(&store.counters().pulls_refused, 1);
            return Err(Failure {
                status: Status::Delay,
                detail: Some("too many copies from other iods are in progress".into()),
            });
        };
        let replaced = || self.session.as_ref().is_some_and(|session| session.membership.is_replaced());
        let work = Work { volume: &volume, args: &args, target, replaced: &replaced };
        let mut done = 0;
        let stopped = match if here { work.copy(&mut done) } else { work.fetch(&mut done) } {
            Ok(()) => None,
            Err(Stop::Target(failure)) => return Err(failure),
            Err(Stop::Source(why)) => {
                Counters::add(&store.counters().pulls_stopped, 1);
                tracing::info!(object = %args.cap.object, source = %args.source.iod, "a copy from another iod has stopped: {why}");
                Some(why)
            }
        };
        let size = match args.stable {
            true => work.target.commit(store, generation)?,
            false => work.target.size(store, generation)?.0,
        };
        Ok(PullReply { verifier: store.verifier(), stable: args.stable, size, done, stopped })
    }
}

/// The arguments and the target object of one running PULL.
struct Work<'a> {
    volume: &'a Volume,
    args: &'a PullArgs,
    target: Arc<Object>,
    /// Returns whether a newer connection has replaced the connection that requested this PULL. Then the PULL must
    /// stop.
    replaced: &'a dyn Fn() -> bool,
}

impl Work<'_> {
    /// Copies from an object of another iod; adds the number of copied bytes to `done`.
    fn fetch(&self, done: &mut u64) -> Result<(), Stop> {
        let until = Instant::now() + PATIENCE;
        let mut source = None;
        for part in parts(&self.args.extents) {
            self.go_on()?;
            let source = match &mut source {
                Some(source) => source,
                none => none.insert(self.connect(until).map_err(Stop::Source)?),
            };
            let extents = part.iter().map(|e| Extent { offset: e.from, len: e.len }).collect();
            let reply = source.read(self.args.source.cap.clone(), extents, until).map_err(Stop::Source)?;
            let pieces = reply.head.pieces.iter().map(|piece| (piece.kind, piece.len as usize));
            let len = self.put(&part, pieces, reply.data)?;
            Counters::add(&self.volume.store.counters().bytes_pulled, len);
            *done += len;
        }
        Ok(())
    }

    fn connect(&self, until: Instant) -> Result<Source, String> {
        Source::connect(&self.args.source, self.volume.store.fsid(), until)
    }

    /// Copies from another object of this iod; adds the number of copied bytes to `done`.
    fn copy(&self, done: &mut u64) -> Result<(), Stop> {
        let store = &self.volume.store;
        let cap = &self.args.source.cap;
        let object = store.object(cap.object);
        let mut plan = ReadPlan::default();
        for part in parts(&self.args.extents) {
            self.go_on()?;
            let extents: Vec<_> = part.iter().map(|e| Extent { offset: e.from, len: e.len }).collect();
            let told = |failure: Failure| Stop::Source(failure.to_string());
            let open = object.plan_read(store, cap.generation, &extents, &mut plan).map_err(told)?;
            let len = match &open {
                Some(open) if self.copy_files(open, &part)? => part.iter().map(|e| u64::from(e.len)).sum(),
                _ => {
                    let mut data = vec![0; plan.data_len as usize];
                    if let Some(open) = &open {
                        open.read(&plan.runs, &mut data, store.counters()).map_err(told)?;
                    }
                    let pieces = plan.pieces.iter().map(|piece| (piece.kind, piece.len as usize));
                    self.put(&part, pieces, data.into())?
                }
            };
            Counters::add(&store.counters().bytes_copied, len);
            *done += len;
        }
        Ok(())
    }

    /// Makes the file system copy the bytes, if the file system supports that and neither object has checksums. Returns
    /// whether the file system copied all bytes.
    fn copy_files(&self, source: &Open, part: &[PullExtent]) -> Result<bool, Failure> {
        for extent in part {
            if !self.target.copy_from(&self.volume.store, self.args.cap.generation, source, extent)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the bytes of the source object into the target object. Writes zeros for holes and past the end of the
    /// source object, because this iod does not know where the source file ends.
    fn put(
        &self,
        part: &[PullExtent],
        pieces: impl Iterator<Item = (PieceKind, usize)> + Clone,
        data: Bytes,
    ) -> Result<u64, Failure> {
        let len: usize = part.iter().map(|e| e.len as usize).sum();
        let whole = if data.len() == len {
            data
        } else {
            let (mut all, mut at, mut rest) = (vec![0; len], 0, &data[..]);
            for (kind, len) in pieces {
                if kind == PieceKind::Data {
                    let (here, behind) = rest.split_at(len);
                    all[at..at + len].copy_from_slice(here);
                    rest = behind;
                }
                at += len;
            }
            all.into()
        };
        let extents: Vec<_> = part.iter().map(|e| WriteExtent { offset: e.to, len: e.len, crc32c: 0 }).collect();
        self.target.write(&self.volume.store, self.args.cap.generation, (&extents, 0), [&whole, &[]])?;
        Ok(len as u64)
    }

    fn go_on(&self) -> Result<(), Stop> {
        if (self.replaced)() { Err(Stop::Source("the requester has made a newer connection".into())) } else { Ok(()) }
    }
}

/// Splits the extents of a PULL, in order, into groups, each of which one READ can return.
fn parts(extents: &[PullExtent]) -> impl Iterator<Item = Vec<PullExtent>> + use<'_> {
    let mut rest = extents.iter().copied().filter(|extent| extent.len > 0);
    let mut left: Option<PullExtent> = None;
    std::iter::from_fn(move || {
        let (mut part, mut room) = (Vec::new(), PAYLOAD_MAX as u32);
        while room > 0
            && let Some(next) = left.take().or_else(|| rest.next())
        {
            let len = next.len.min(room);
            part.push(PullExtent { len, ..next });
            room -= len;
            let (from, to) = (next.from + u64::from(len), next.to + u64::from(len));
            left = (len < next.len).then(|| PullExtent { from, to, len: next.len - len });
        }
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_divided_into_parts_of_at_most_one_payload() {
        let extent = |from, to, len| PullExtent { from, to, len };
        let mib = PAYLOAD_MAX as u32;
        let extents = [extent(5, 9, 3), extent(0, 0, 0), extent(100, 0, 2 * mib), extent(7, 7, 1)];
        let parts: Vec<_> = parts(&extents).collect();
        let far = u64::from(mib) - 3;
        assert_eq!(
            parts,
            [
                vec![extent(5, 9, 3), extent(100, 0, mib - 3)],
                vec![extent(100 + far, far, mib)],
                vec![extent(100 + far + u64::from(mib), far + u64::from(mib), 3), extent(7, 7, 1)],
            ]
        );
    }
}
