//! The mgr path: the mgr reads and writes the objects of a file on behalf of clients without a layout.
//!
//! Every function works on the objects of one file. The layout record of the file says which iods hold which bytes.
//! Requests to several iods run in parallel.

mod copy;
mod data;
mod fencing;
mod heal;
mod log_file;
mod move_objects;
mod punch;
mod read;
mod rebuild;
mod remove;
mod reserve;
mod seek;
mod size;
mod truncate;
mod write;

use crate::iods::{Iods, Link};
use crate::kinds::{Known, Stored};
use futures_util::future;
pub(crate) use heal::{Suspect, remember};
use layout::kinds::native::Record;
use layout::list_io::{RequestLimits, plan};
use layout::{BadGeometry, Distribution};
pub(crate) use log_file::LogFile;
pub(crate) use rebuild::Rebuilt;
pub(crate) use size::End;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use types::{ByteRange, ObjectId, Status};
use wire::native::{Capability, Procedure, Rights};
pub(crate) use write::Written;
use xdr::{Segments, Xdr};

/// Largest number of times that the mgr repeats a request that an iod refused because of a newer fence.
const OVERTAKEN_MAX: usize = 8;

/// The objects of one striped file, for requests on the mgr path.
#[derive(Debug)]
pub(crate) struct Objects<'a> {
    pub(crate) iods: &'a Iods,
    pub(crate) known: Known,
    pub(crate) record: Record,
    pub(crate) distribution: Distribution,
    /// Whether a request has found a copy with lost or damaged bytes ([`Objects::is_damaged`]).
    damaged: AtomicBool,
    /// The damaged ranges that requests have found ([`Objects::suspects`]).
    suspects: Mutex<Vec<Suspect>>,
}

impl<'a> Objects<'a> {
    /// Returns the objects that a layout record names.
    pub(crate) fn new(iods: &'a Iods, known: Known, record: Record) -> Result<Self, BadGeometry> {
        let distribution = record.distribution()?;
        let (damaged, suspects) = (AtomicBool::new(false), Mutex::default());
        Ok(Objects { iods, known, record, distribution, damaged, suspects })
    }

    /// Returns whether a request through this [`Objects`] has found a copy with lost or damaged bytes.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Relaxed)
    }

    fn found(&self, damage: bool) {
        self.damaged.fetch_or(damage, Relaxed);
    }

    /// Returns the smallest length that an object of the file has if the object has lost no bytes.
    pub(crate) fn least(&self, index: usize) -> u64 {
        let column = self.column(index);
        let whole = self.distribution.object_size(self.known.whole, column);
        let Some(last) = self.known.written.checked_sub(1) else { return whole };
        let place = self.distribution.place(last);
        if place.index == column { whole.max(place.offset + 1) } else { whole }
    }

    /// Returns the id of the file's objects: inode number and stream. All iods of the file use the same id.
    pub(crate) fn object(&self) -> ObjectId {
        self.record.object(self.known.file)
    }

    /// Returns the link (connections) to the iod that holds the object with this index; `Delay` while the iod is down.
    fn link(&self, index: usize) -> Result<Arc<Link>, Status> {
        self.iods.link(self.iod(index))
    }

    /// Returns whether an iod that holds bytes of `range` is lost. With `None`, any iod of the file counts.
    pub(crate) fn lost_in(&self, range: Option<ByteRange>) -> bool {
        let lost = self.iods.lost();
        let is_lost = |index| lost.contains(&self.iod(index));
        let any_lost = |index| self.copies(index).any(is_lost);
        match range {
            _ if lost.is_empty() => false,
            Some(range) => {
                plan(&self.distribution, &[range], RequestLimits::default()).iter().any(|r| any_lost(r.index))
            }
            None => (0..self.count()).any(is_lost),
        }
    }

    /// Returns the number of bytes in `range` before the first byte that is on a lost iod.
    pub(crate) fn before_lost(&self, range: ByteRange) -> u64 {
        let lost = self.iods.lost();
        let requests = plan(&self.distribution, &[range], RequestLimits::default());
        let of_lost = requests.iter().filter(|request| lost.contains(&self.iod(request.index)));
        let first = of_lost.flat_map(|request| &request.parts).map(|part| part.offset).min();
        first.map_or(range.len, |first| first - range.offset)
    }

    /// Returns a capability of the mgr for the file's object on this iod.
    fn capability(&self, link: &Link, rights: Rights) -> Capability {
        link.capability(self.object(), self.known.generation, rights)
    }

    /// Calls a procedure that changes no bytes of an object.
    ///
    /// If the iod refuses the call because of a newer fence, the mgr repeats the call with the newer generation. A
    /// fence is against clients, and not against the mgr. The mgr does not repeat calls that change bytes, because the
    /// fence may be against the client whose request the mgr executes. This client gets `Delay`, and has to send its
    /// request again.
    async fn ask<A: Xdr, R: Xdr>(
        &self,
        link: &Link,
        procedure: Procedure,
        rights: Rights,
        arguments: impl Fn(Capability) -> A,
    ) -> Result<R, Status> {
        self.ask_about(self.object(), link, (procedure, rights), arguments).await
    }

    /// Does the same as [`Objects::ask`], for any object of the file.
    async fn ask_about<A: Xdr, R: Xdr>(
        &self,
        object: ObjectId,
        link: &Link,
        (procedure, rights): (Procedure, Rights),
        arguments: impl Fn(Capability) -> A,
    ) -> Result<R, Status> {
        let mut generation = self.known.generation;
        for _ in 0..OVERTAKEN_MAX {
            match link.attempt(procedure, &arguments(link.capability(object, generation, rights))).await {
                Err(Status::Fenced) => {}
                other => return other,
            }
            let newer = self.iods.generation(self.known.file)?;
            if newer <= generation {
                break;
            }
            generation = newer;
        }
        Err(Status::Delay)
    }

    /// Queries the copies of an object one after the other. Returns the first success, or the first error if every copy
    /// fails.
    async fn any_copy<T, W: Future<Output = Result<T, Status>>>(
        &self,
        column: usize,
        ask: impl Fn(Arc<Link>) -> W,
    ) -> Result<T, Status> {
        let mut outcome = None;
        for index in self.copies(column) {
            let answer = match self.link(index) {
                Ok(link) => ask(link).await,
                Err(e) => Err(e),
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(e) => outcome = outcome.or(Some(Err(e))),
            }
        }
        outcome.unwrap_or(Err(Status::ServerFault))
    }

    /// Runs `work` for all objects concurrently and waits for all of them. Returns the first failure, if any.
    async fn each<T, W: Future<Output = Result<T, Status>>>(
        &self,
        work: impl Fn(usize) -> W,
    ) -> Result<Vec<T>, Status> {
        future::join_all((0..self.count()).map(work)).await.into_iter().collect()
    }
}

/// Returns zeros for a range of a file that has no objects.
pub(crate) fn zeros(range: ByteRange) -> Segments {
    data::assemble(range, Vec::new())
}
