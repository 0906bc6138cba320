//! The check of regular files examines the layout record of every file, and the length of each copy of the file's
//! objects.
//!
//! A file may have holes, and a hole needs no object. So the check requires only bytes that clients have reported to
//! the mgr as durable: all bytes below [`FileState::whole`], and the last byte before [`FileState::written`].

use super::finding::Kind;
use super::run::{Check, Checked};
use crate::iods::RequestError;
use crate::kinds::{Stored, Unusable};
use futures_util::{StreamExt, stream};
use meta::FileState;
use std::fmt;
use types::{ByteRange, FileId, IodId, Status};
use wire::admin::Finding;
use wire::native::SizeReply;

/// Largest number of inodes that one read of the namespace returns.
const PAGE: usize = 512;
/// Largest number of files whose objects the check examines concurrently.
const AT_ONCE: usize = 32;
/// Largest number of times that the check examines a file whose inode changes during the examination.
const TRIES: usize = 4;
/// Largest number of byte ranges that the text of a finding lists.
const RANGES_TOLD: usize = 4;

/// The result of the check of one regular file.
enum FileResult {
    Fine,
    Found(Finding),
    /// The check could not reach an iod that must hold bytes of the file: number and identity of this iod.
    IodDown(u16, IodId),
}

impl Check {
    pub(super) async fn files(&mut self) -> Checked {
        let total = self.volume.namespace.files().unwrap_or(0);
        self.begin("files", total).await?;
        let mut after = Some(FileId(0));
        while let Some(from) = after {
            let (files, next) = self.volume.namespace.files_after(from, PAGE)?;
            after = next;
            self.counts.files += files.len() as u64;
            let looked = files.len() as u64;
            let looks: Vec<_> = files.into_iter().map(|file| self.file(file)).collect();
            let looks: Vec<Result<FileResult, Status>> = stream::iter(looks).buffered(AT_ONCE).collect().await;
            for look in looks {
                match look? {
                    FileResult::Fine => {}
                    FileResult::Found(finding) if self.repair => self.repair_file(finding).await?,
                    FileResult::Found(finding) => self.found(finding).await?,
                    FileResult::IodDown(number, id) => {
                        self.counts.unasked += 1;
                        self.unreached(number, id).await?;
                    }
                }
            }
            self.looked(looked).await?;
        }
        Ok(())
    }

    /// Repairs the copies of a file if the file has more than one copy, and reports the finding with the outcome of the
    /// repair.
    async fn repair_file(&mut self, finding: Finding) -> Checked {
        let outcome = match finding.inode {
            Some(file) if Kind::is_of_a_copy(&finding.code) => {
                self.volume.rebuild(FileId(file), &[]).await.map(|_| true)
            }
            _ => Ok(false),
        };
        let outcome = if outcome == Err(Status::Lost) { Ok(false) } else { outcome };
        self.mended(finding, outcome).await
    }

    /// Checks a file until its inode has not changed during the check, at most [`TRIES`] times.
    async fn file(&self, mut file: FileState) -> Result<FileResult, Status> {
        for _ in 0..TRIES {
            let look = self.look(&file).await?;
            if matches!(look, FileResult::Fine) {
                return Ok(look);
            }
            match self.volume.namespace.file_state(file.id)? {
                None => return Ok(FileResult::Fine),
                // The file has no name, so a mismatch between the file and its objects is no damage: the mgr deletes
                // the objects after the last close.
                Some(_) if self.volume.namespace.info(file.id).is_ok_and(|info| info.attrs.nlink == 0) => {
                    return Ok(FileResult::Fine);
                }
                Some(now) if now == file => return Ok(look),
                Some(now) => file = now,
            }
        }
        // A file that changed during each of the `TRIES` examinations is in use. Its users notice any damage
        // themselves, so report nothing.
        Ok(FileResult::Fine)
    }

    async fn look(&self, file: &FileState) -> Result<FileResult, Status> {
        let found = |kind: Kind, iod, text: String| Ok(FileResult::Found(kind.found(Some(file.id), iod, text)));
        let Some(layout) = file.layout.as_ref().filter(|layout| layout.is_final()) else {
            return match file.written {
                0 => Ok(FileResult::Fine),
                written => found(
                    Kind::LayoutMissing,
                    None,
                    format!("{written} bytes were written, but the file has no layout"),
                ),
            };
        };
        let objects = match self.volume.kinds.try_open(&self.volume.iods, file.into(), layout) {
            Ok(objects) => objects,
            Err(Unusable::Unknown(kind)) => {
                return found(Kind::LayoutDamaged, None, format!("its layout is of kind {kind}, which is not known"));
            }
            Err(Unusable::Damaged(_)) => {
                return found(Kind::LayoutDamaged, None, "its layout cannot be read".to_owned());
            }
        };
        for number in objects.iods() {
            if self.volume.iods.registered(*number).is_err() {
                return found(
                    Kind::LayoutUnknownIod,
                    None,
                    format!("it is striped over iod {number}, which is not known"),
                );
            }
        }
        for column in 0..objects.width() {
            let mut answers = Vec::new();
            for index in objects.copies(column) {
                answers.push((index, objects.ask_size(index).await));
            }
            let longest = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()).map(|reply| reply.size).max();
            let least = match longest {
                Some(longest) if answers.len() > 1 && !self.unsettled(file.id)? => {
                    objects.least_of_copies(column, longest)
                }
                _ => objects.least(column),
            };
            for (index, answer) in answers.into_iter().filter(|_| least > 0) {
                let look = self.judge(file, &*objects, (index, least), answer)?;
                if !matches!(look, FileResult::Fine) {
                    return Ok(look);
                }
            }
        }
        Ok(FileResult::Fine)
    }

    /// Compares the reply of an iod about one object with `least`, the smallest length in bytes that the object must
    /// have.
    fn judge(
        &self,
        file: &FileState,
        objects: &dyn Stored,
        (index, least): (usize, u64),
        answer: Result<SizeReply, RequestError>,
    ) -> Result<FileResult, Status> {
        let number = objects.iod(index);
        let iod = self.volume.iods.registered(number)?.id;
        let there = |kind: Kind, has: u64, text: &str| {
            let lost = Lost::of(objects, index, ByteRange { offset: has, len: least - has });
            let kind = if objects.mirrors() > 1 { kind.of_a_copy() } else { kind };
            let finding = kind.found(Some(file.id), Some(iod), format!("{text}: {lost}"));
            FileResult::Found(Finding { range: lost.range(), ..finding })
        };
        Ok(match answer {
            Ok(reply) if reply.size >= least => FileResult::Fine,
            Ok(reply) if reply.size == 0 && reply.allocated == 0 => {
                there(Kind::ObjectMissing, 0, &format!("its object, of {least} bytes, does not exist"))
            }
            Ok(reply) => {
                let text = format!("its object has {} of at least {least} bytes", reply.size);
                there(Kind::ObjectShort, reply.size, &text)
            }
            Err(RequestError::Down) => FileResult::IodDown(number, iod),
            Err(RequestError::Refused(Status::Corrupt, detail)) => there(Kind::ObjectDamaged, 0, &detail),
            // The iod refused the request for a reason other than a damaged object, for example because the object has
            // a newer generation than the request. The check of objects and the check of scrub findings report such
            // problems.
            Err(RequestError::Refused(..)) => FileResult::Fine,
        })
    }
}

/// The lost bytes of a file, for the text of a finding.
pub(super) struct Lost {
    /// The first lost ranges of the file in file order, at most [`RANGES_TOLD`].
    first: Vec<ByteRange>,
    /// Total number of lost bytes of the file.
    bytes: u64,
    /// File offset of the end of the last lost range.
    end: u64,
}

impl Lost {
    pub(super) fn of(objects: &dyn Stored, index: usize, part: ByteRange) -> Self {
        let mut lost = Lost { first: Vec::new(), bytes: part.len, end: 0 };
        for range in objects.file_ranges(objects.column(index), part) {
            lost.end = range.end().min(objects.known().size);
            if lost.first.len() < RANGES_TOLD {
                lost.first.push(range);
            }
        }
        lost
    }

    pub(super) fn range(&self) -> Option<(u64, u64)> {
        self.first.first().map(|first| (first.offset, self.end))
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of the file, at", self.bytes)?;
        for (at, range) in self.first.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma} {} to {}", range.offset, range.end() - 1)?;
        }
        let told: u64 = self.first.iter().map(|range| range.len).sum();
        if told < self.bytes { write!(f, " and so on to {}", self.end.saturating_sub(1)) } else { Ok(()) }
    }
}
