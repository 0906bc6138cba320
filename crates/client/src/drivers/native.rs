//! The native layout driver: reads and writes objects on iods with the native protocol.

mod file_ranges;
#[cfg(test)]
mod fixture;
mod iods;
mod lengths;
mod log;
mod object_run;

#[cfg(test)]
pub(super) use fixture::MemoryIods;
pub(crate) use object_run::ObjectRun;

use super::{Attempt, Driver, Layout, NotDone, Payload, Written};
use crate::counters::{Tally, add};
use crate::devices::Devices;
use crate::short_circuit::{Loans, ObjectLoan, Read};
use crate::{Error, Result};
use async_trait::async_trait;
use iods::{Iods, Target};
use layout::Distribution;
use layout::kinds::native as kind;
use lengths::Lengths;
use log::{LogFiles, LogLayout};
use net::clock::unix_now;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{ByteRange, Generation, ObjectId, Status, Verifier};
use wire::native::*;
use xdr::Xdr;

pub(super) struct Native {
    devices: Arc<Devices>,
    tally: Arc<Tally>,
    log_files: LogFiles,
}

impl Native {
    pub(super) fn new(devices: Arc<Devices>, tally: Arc<Tally>) -> Self {
        Native { devices, tally, log_files: LogFiles::default() }
    }
}

#[async_trait]
impl Driver for Native {
    type Kind = kind::Native;

    async fn attach(&self, body: kind::Body) -> Result<Arc<dyn Layout>> {
        let bad = |e: &dyn std::fmt::Display| Error::protocol(format!("the mgr sent a malformed native layout: {e}"));
        let distribution = body.distribution().map_err(|e| bad(&e))?;
        let cap = Capability::from_bytes(&body.capability).map_err(|e| bad(&e))?;
        let base = Objects {
            distribution,
            object: body.object,
            lengths: Lengths::new(&distribution, body.whole),
            generation: cap.generation,
            caps: body.authenticators.iter().map(|mac| Capability { mac: *mac, ..cap.clone() }).collect(),
            old_from: Instant::now() + Duration::from_secs(body.secs.into()) / 2,
            loans_by_object: body.devices.iter().map(|_| Arc::default()).collect(),
            loans: self.devices.loans().clone(),
            iods: Iods::new(&self.devices, body.devices, self.tally.clone()),
        };
        if body.index_authenticators.is_empty() {
            return Ok(Arc::new(base));
        }
        let cap = Capability { object: ObjectId::index(body.object.file), ..cap };
        let caps = body.index_authenticators.iter().map(|mac| Capability { mac: *mac, ..cap.clone() }).collect();
        Ok(Arc::new(LogLayout::new(base, caps, &self.log_files).map_err(|e| bad(&e))?))
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
    iods: Iods,
    /// The loan state of each object, held while this layout is in use.
    loans_by_object: Vec<Arc<ObjectLoan>>,
    loans: Arc<Loans>,
}

fn no_object(index: usize) -> NotDone {
    NotDone::Failed(Error::usage(format!("the layout has no object {index}")))
}

impl Objects {
    /// Returns the object with this index, with the capability for it.
    fn target(&self, index: usize) -> Attempt<Target> {
        self.caps.get(index).cloned().map(|cap| Target { index, cap }).ok_or_else(|| no_object(index))
    }

    /// Reads from the file that the iod lent. Returns `None` if there is no loan, or if the client must send the read
    /// to the iod. Requests a loan if the object is read often enough.
    fn read_short_circuit(&self, index: usize, extents: &[ByteRange]) -> Option<Vec<ObjectRun>> {
        let (iod, object_loan) = (self.iods.get(index)?, self.loans_by_object.get(index)?);
        if !iod.may_lend() {
            return None;
        }
        let tally = self.iods.tally();
        match object_loan.read(unix_now(), extents) {
            Read::Done(found) => {
                let bytes = found.iter().map(ObjectRun::data_len).sum();
                add(&tally.read_direct, bytes);
                add(&tally.read_short_circuit, bytes);
                add(&tally.short_circuit_reads, 1);
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

    /// Adds the file range of the damaged bytes to the error of a READ that failed with a checksum error.
    async fn locate(&self, target: &Target, extents: &[ByteRange], error: Error) -> Error {
        let damaged = self.iods.damaged(target, extents).await;
        let file = damaged.and_then(|range| self.distribution.file_ranges(target.index, range).next());
        file.map_or(error, |file| self.iods.damage(target.index, file))
    }
}

/// Requests for single objects; `index` is the index of the object in the distribution.
impl Objects {
    /// Reads extents of an object; the reply covers them in order. All extents together must fit into one payload.
    async fn read_object(&self, index: usize, extents: &[ByteRange]) -> Attempt<Vec<ObjectRun>> {
        if let Some(found) = self.read_short_circuit(index, extents) {
            return Ok(found);
        }
        let target = self.target(index)?;
        match self.iods.read(&target, extents).await {
            Err(NotDone::Failed(e)) if e.is(Status::Corrupt) => {
                Err(NotDone::Failed(self.locate(&target, extents, e).await))
            }
            outcome => outcome,
        }
    }

    /// Writes the payload to extents of an object; durably if `stable`.
    async fn write_object(
        &self,
        index: usize,
        extents: &[ByteRange],
        payload: &Payload,
        stable: bool,
    ) -> Attempt<Written> {
        let least = || self.distribution.object_size(self.lengths.whole(), index);
        let reply = self.iods.write(&self.target(index)?, extents, payload, (stable, &least)).await?;
        if reply.stable {
            self.lengths.learn(index, reply.size);
        }
        Ok(Written { verifier: reply.verifier, stable: reply.stable })
    }

    /// Sends COMMIT for an object, and returns the verifier of the reply. The earlier writes that returned the same
    /// verifier are now durable.
    async fn commit_object(&self, index: usize) -> Attempt<Verifier> {
        let reply = self.iods.commit(&self.target(index)?).await?;
        self.lengths.learn(index, reply.size);
        Ok(reply.verifier)
    }

    /// Punches a hole into an object.
    async fn punch_object(&self, index: usize, range: ByteRange) -> Attempt<()> {
        let target = self.target(index)?;
        let args = PunchArgs { cap: target.cap.clone(), offset: range.offset, len: range.len };
        self.iods.call::<Nothing>(&target, Procedure::Punch, &args, "punching a hole").await.map(|_| ())
    }

    /// Returns the offset of the first data byte, or of the first byte in a hole, at or after `offset`. The end of the
    /// object counts as a hole.
    async fn seek_object(&self, index: usize, offset: u64, what: SeekWhat) -> Attempt<Option<u64>> {
        let target = self.target(index)?;
        let args = SeekArgs { cap: target.cap.clone(), offset, what };
        let reply: SeekReply = self.iods.call(&target, Procedure::Seek, &args, "seeking").await?;
        Ok(reply.offset)
    }

    /// Returns the size and the allocated bytes of the object.
    async fn size_object(&self, index: usize) -> Attempt<SizeReply> {
        let target = self.target(index)?;
        let args = ObjectArgs { cap: target.cap.clone() };
        self.iods.call(&target, Procedure::Size, &args, "asking for the size").await
    }
}
