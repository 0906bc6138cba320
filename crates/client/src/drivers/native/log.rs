//! The layout of a log file: the client appends what it writes to a data log of its own, and registers with the index
//! of the file where the bytes are.
//!
//! A lane is the iod with a shard of the index: it answers for all bytes of the lane's file ranges. The bytes
//! themselves are on any iods of the file, because the units of a data log alternate between the iods. So a request of
//! a lane also sends requests to other iods.

mod log_file;
mod own_log;
mod read;
mod registrations;
#[cfg(test)]
mod tests;
mod write;

pub(super) use log_file::LogFiles;

use super::iods::Target;
use super::{Iods, Objects};
use crate::drivers::{Attempt, Layout, NotDone, Payload, ReadDone, Share, Written};
use crate::{Error, Placement};
use async_trait::async_trait;
use layout::Distribution;
use layout::distributions::BadGeometry;
use layout::kinds::log::{LogPlaces, shards};
use layout::list_io::{RequestLimits, plan};
use log_file::LogFile;
use log_index::{LOGS_MAX, LogNumber};
use std::sync::Arc;
use types::{ByteRange, Generation, ObjectId, Status, Verifier};
use wire::native::Capability;

/// The native layout of a log file.
pub(super) struct LogLayout {
    /// The striped base of the file.
    base: Objects,
    /// The capability for the index and all data logs on each iod.
    caps: Vec<Capability>,
    /// The distribution that divides the file into the shards of the index.
    shards: Distribution,
    /// What the client knows about the file whatever layout it has.
    file: Arc<LogFile>,
}

impl LogLayout {
    /// Creates the layout of a log file with this base. `caps` are the capabilities for the index on each iod.
    ///
    /// # Errors
    /// The geometry of the base is out of bounds.
    pub(super) fn new(base: Objects, caps: Vec<Capability>, files: &LogFiles) -> Result<Self, BadGeometry> {
        let shards = shards(base.distribution.stripe_unit(), base.distribution.count())?;
        let file = files.file(base.object, base.distribution.stripe_unit(), base.iods.ids());
        Ok(LogLayout { base, caps, shards, file })
    }

    fn iods(&self) -> &Iods {
        &self.base.iods
    }

    fn count(&self) -> usize {
        self.shards.count()
    }

    /// Returns the shard of the index on the iod with this index.
    fn index_target(&self, index: usize) -> Attempt<Target> {
        let none = || NotDone::Failed(Error::usage(format!("the layout has no iod {index}")));
        self.caps.get(index).cloned().map(|cap| Target { index, cap }).ok_or_else(none)
    }

    /// Returns the object of a data log on the iod with this index.
    fn log_target(&self, log: LogNumber, index: usize) -> Attempt<Target> {
        let mut target = self.index_target(index)?;
        target.cap.object = ObjectId::log(self.base.object.file, self.checked(log)?.0);
        Ok(target)
    }

    /// Returns the places of the bytes of a data log.
    fn places(&self, log: LogNumber) -> Attempt<LogPlaces> {
        let places = LogPlaces::new(self.checked(log)?.0, self.base.distribution.stripe_unit(), self.count());
        places.map_err(|error| NotDone::Failed(Error::protocol(error.to_string())))
    }

    /// Checks the number of a data log that an iod sent.
    fn checked(&self, log: LogNumber) -> Attempt<LogNumber> {
        let bad = || Error::protocol(format!("an iod sent the data log {} of file {}", log.0, self.base.object.file));
        if (1..LOGS_MAX).contains(&log.0) { Ok(log) } else { Err(NotDone::Failed(bad())) }
    }

    /// Checks that the shard of this lane answers for all bytes of `parts`.
    ///
    /// # Errors
    /// [`NotDone::NotAttempted`]: the caller divided the ranges for an earlier layout of the file.
    fn check_lane(&self, lane: usize, parts: &[ByteRange]) -> Attempt<()> {
        if parts.iter().flat_map(|part| self.shards.pieces(*part)).all(|piece| piece.index == lane) {
            return Ok(());
        }
        let what = format!("shard {lane} of the index of file {}: the file has another layout now", self.base.object);
        Err(NotDone::NotAttempted(Error::status(Status::NoLayout, what)))
    }

    /// Returns the error for a request that only the mgr executes on log files.
    fn through_mgr<T>(what: &str) -> Attempt<T> {
        let what = format!("{what} of a log file without the mgr");
        Err(NotDone::NotAttempted(Error::status(Status::NotSupp, what)))
    }
}

#[async_trait]
impl Layout for LogLayout {
    fn generation(&self) -> Generation {
        self.base.generation()
    }

    fn is_old(&self) -> bool {
        self.base.is_old()
    }

    fn lanes(&self) -> usize {
        self.count()
    }

    fn shares(&self, ranges: &[ByteRange]) -> Vec<Share> {
        let requests = plan(&self.shards, ranges, RequestLimits::default());
        requests.into_iter().map(|request| Share { lane: request.index, parts: request.parts }).collect()
    }

    fn reaches(&self, _: u64) -> bool {
        // The base of a log file may be shorter than the file, because bytes of the file are in data logs.
        false
    }

    fn truncating(&self) {
        self.base.truncating();
    }

    async fn read(&self, lane: usize, parts: &[ByteRange]) -> Attempt<ReadDone> {
        self.read_file(lane, parts).await
    }

    async fn write(&self, lane: usize, parts: &[ByteRange], payload: &Payload, stable: bool) -> Attempt<Written> {
        self.write_file(lane, parts, payload, stable).await
    }

    async fn commit(&self, lane: usize) -> Attempt<Verifier> {
        self.commit_lane(lane).await
    }

    async fn punch(&self, _: ByteRange) -> Attempt<()> {
        Self::through_mgr("punching a hole")
    }

    async fn next_data(&self, _: u64) -> Attempt<Option<ByteRange>> {
        Self::through_mgr("seeking data")
    }

    async fn placement(&self, file_size: u64) -> Attempt<Placement> {
        self.base.placement(file_size).await
    }
}
