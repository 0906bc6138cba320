//! I/O on behalf of clients that do none themselves: to the same objects that layouts point at.
//!
//! Every function works on one file: its layout record tells which iods hold which bytes, the pieces move in parallel.

mod copy;
mod data;
mod heal;
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
use futures_util::future;
pub(crate) use heal::{Suspect, remember};
use layout::Distribution;
use layout::kinds::native::{KIND, Record};
use layout::list_io::{RequestLimits, plan};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use types::{ByteRange, FileId, Generation, Status};
use wire::native::{Capability, Procedure, Rights};
use write::Written;
use xdr::{Segments, Xdr};

/// How often a request is made that fences overtake.
const OVERTAKEN_MAX: usize = 8;

/// The objects of one file, ready for requests.
#[derive(Debug)]
pub(crate) struct Objects<'a> {
    iods: &'a Iods,
    pub(crate) file: FileId,
    generation: Generation,
    pub(crate) record: Record,
    pub(crate) distribution: Distribution,
    /// Size of the file.
    size: u64,
    /// Up to here each byte of the file was written and is on the disk of an iod ([`meta::FileInfo::whole`]).
    pub(crate) whole: u64,
    /// One past the last byte that is known to be on the disk of an iod ([`meta::FileInfo::written`]).
    written: u64,
    /// See [`Objects::is_damaged`].
    damaged: AtomicBool,
    /// See [`Objects::suspects`].
    suspects: Mutex<Vec<Suspect>>,
}

impl<'a> Objects<'a> {
    /// The objects that a layout record of the namespace names; `Corrupt` for one that cannot be.
    pub(crate) fn new(
        iods: &'a Iods,
        file: FileId,
        generation: Generation,
        layout: &meta::Layout,
    ) -> Result<Self, Status> {
        let damaged = |why: &dyn std::fmt::Display| {
            tracing::error!(file = file.0, "the layout record of a file cannot be used: {why}");
            Status::Corrupt
        };
        if layout.kind != KIND {
            return Err(damaged(&format_args!("kind {} is not known", layout.kind)));
        }
        let record = Record::from_bytes(&layout.body).map_err(|e| damaged(&e))?;
        let distribution = record.distribution().map_err(|e| damaged(&e))?;
        let (damaged, suspects) = (AtomicBool::new(false), Mutex::default());
        Ok(Objects { iods, file, generation, record, distribution, size: 0, whole: 0, written: 0, damaged, suspects })
    }

    /// The same of a file of which so much is known to be on disk ([`meta::FileInfo`]).
    pub(crate) fn knowing(self, size: u64, whole: u64, written: u64) -> Self {
        Objects { size, whole, written, ..self }
    }

    /// Whether a copy was met that has lost or damaged bytes.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Relaxed)
    }

    fn found(&self, damage: bool) {
        self.damaged.fetch_or(damage, Relaxed);
    }

    /// How long an object must be if it has lost no bytes.
    pub(crate) fn least(&self, index: usize) -> u64 {
        let column = self.column(index);
        let whole = self.distribution.object_size(self.whole, column);
        let Some(last) = self.written.checked_sub(1) else { return whole };
        let place = self.distribution.place(last);
        if place.index == column { whole.max(place.offset + 1) } else { whole }
    }

    /// How long a copy must be where nobody writes the file, and the longest copy has so many bytes: as long, as far as the file reaches. What only one
    /// copy has nobody was told of, but who reads may meet it.
    pub(crate) fn least_of_copies(&self, index: usize, longest: u64) -> u64 {
        let reaches = self.distribution.object_size(self.size, self.column(index));
        self.least(index).max(longest.min(reaches))
    }

    /// Number of the iod that holds object `index`.
    pub(crate) fn iod(&self, index: usize) -> u16 {
        self.record.iods[index]
    }

    /// Which object an iod holds.
    pub(crate) fn index_on(&self, iod: u16) -> Option<usize> {
        self.record.iods.iter().position(|number| *number == iod)
    }

    /// Number of objects: those of the first copy, then those of the next.
    pub(crate) fn count(&self) -> usize {
        self.record.iods.len()
    }

    /// Which of a copy's objects `index` is: the distribution knows no copies.
    pub(crate) fn column(&self, index: usize) -> usize {
        index % self.distribution.count()
    }

    /// The objects that hold the same as object `index` of the first copy, itself included.
    pub(crate) fn copies(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        (index..self.count()).step_by(self.distribution.count())
    }

    /// The way to the iod that holds object `index`; `Delay` while it is down.
    fn link(&self, index: usize) -> Result<Arc<Link>, Status> {
        self.iods.link(self.iod(index))
    }

    /// Whether an iod that holds bytes of this range, or any of the file, is away for good as far as anybody knows.
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

    /// How many bytes there are in a range before the first that only a lost iod has.
    pub(crate) fn before_lost(&self, range: ByteRange) -> u64 {
        let lost = self.iods.lost();
        let requests = plan(&self.distribution, &[range], RequestLimits::default());
        let of_lost = requests.iter().filter(|request| lost.contains(&self.iod(request.index)));
        let first = of_lost.flat_map(|request| &request.parts).map(|part| part.offset).min();
        first.map_or(range.len, |first| first - range.offset)
    }

    /// What the mgr shows this iod to use the object there.
    fn capability(&self, link: &Link, rights: Rights) -> Capability {
        link.capability(self.file, self.generation, rights)
    }

    /// Calls a procedure that changes no bytes of an object.
    ///
    /// When the file was fenced since its generation was looked up, it is called again as the newer one: no fence is meant
    /// for the mgr itself. What changes bytes is not repeated so. It may be for a client whose right to it was just
    /// taken away, and to whoever has that now; so it is the client, told `Delay`, who has to ask again.
    async fn ask<A: Xdr, R: Xdr>(
        &self,
        link: &Link,
        procedure: Procedure,
        rights: Rights,
        arguments: impl Fn(Capability) -> A,
    ) -> Result<R, Status> {
        let mut generation = self.generation;
        for _ in 0..OVERTAKEN_MAX {
            match link.attempt(procedure, &arguments(link.capability(self.file, generation, rights))).await {
                Err(Status::Fenced) => {}
                other => return other,
            }
            let newer = self.iods.generation(self.file)?;
            if newer <= generation {
                break;
            }
            generation = newer;
        }
        Err(Status::Delay)
    }

    /// Asks the copies of an object one after the other, and answers as the first that can; as the first of all if none can.
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

    /// Runs `work` for all objects at once; the first failure is the outcome, after all are done.
    async fn each<T, W: Future<Output = Result<T, Status>>>(
        &self,
        work: impl Fn(usize) -> W,
    ) -> Result<Vec<T>, Status> {
        future::join_all((0..self.count()).map(work)).await.into_iter().collect()
    }
}

/// The bytes of a file that has a size but no objects.
pub(crate) fn zeros(range: ByteRange) -> Segments {
    data::assemble(range, Vec::new())
}
