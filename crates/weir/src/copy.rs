//! Parallel copying of directory trees: a queue of tasks, the threads that run the tasks, and one report of the whole
//! copy.
//!
//! The copy writes every file under a temporary name in its directory. It renames the file when the file is complete
//! and, in Weir, durable. So a final name at the destination always names a whole file. See [`TEMPORARY`].

mod body;
mod buffers;
pub mod entry;
pub mod job;
mod links;
mod local;
mod queue;
pub mod remote;
pub mod report;
pub mod side;
mod target;

pub use buffers::{Buffer, PIECE, Pool};
pub use local::stat;

use crate::failure::{Exit, Failure};
use crate::stop::Stop;
use body::{Body, CHUNK, TransferContext};
use entry::Location;
use job::{DirJob, FileJob, Folder, Into};
use links::{LinkAction, Links};
use queue::{Queue, Task};
use report::Report;
use side::Side;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use types::{FileId, FileKind};

/// Prefix of temporary names, which random hexadecimal digits follow. A killed copy leaves files with such names. Users
/// can remove these files when no copy into their directory is running.
pub const TEMPORARY: &str = ".weir-cp-";

/// Returns a new temporary name: [`TEMPORARY`] and random digits.
pub fn temporary_name() -> Result<Vec<u8>, Failure> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| Failure::new(format!("cannot get random bytes from the kernel: {e}")))?;
    Ok(format!("{TEMPORARY}{}", crate::show::hex(&random)).into_bytes())
}

/// Returns the path of the entry `name` in a directory of the destination, formatted for messages.
pub fn named(dir: &Location, name: &[u8]) -> String {
    crate::show::path(&crate::locator::join(&dir.path, name))
}

/// A copy in progress: its source and destination, its queue of tasks, and its report.
pub struct Copy {
    from: Side,
    to: Side,
    same_system: bool,
    stop: Stop,
    pool: Pool,
    report: Report,
    links: Links<FileJob, Location>,
    queue: Queue<DirJob, FileJob, Arc<Body>>,
    jobs: usize,
    /// File ids of the top directories of the destination. The copy must not read a source directory with one of
    /// these ids, because it would then copy this directory into itself.
    tops: Mutex<HashSet<FileId>>,
    /// The first failure after which every further file would fail too, for example an unreachable cluster.
    fatal: Mutex<Option<Failure>>,
    aborted: AtomicBool,
}

/// The source, the destination, the threads and the report of a copy.
pub struct Plan {
    /// The source of the copy.
    pub from: Side,
    /// The destination of the copy.
    pub to: Side,
    /// Whether source and destination are the same file system.
    pub same_system: bool,
    /// Number of threads, at least 1.
    pub jobs: usize,
    /// The stop flag, which is set when the user asks the command to stop.
    pub stop: Stop,
    /// The report, which receives progress and errors and prints the summary.
    pub report: Report,
}

impl Copy {
    /// Copies directories and files. Returns when all tasks are done, a fatal failure has ended the copy, or the user
    /// has stopped the copy.
    pub fn run(plan: Plan, dirs: Vec<DirJob>, files: Vec<FileJob>) -> Result<Exit, Failure> {
        let copy = Copy {
            from: plan.from,
            to: plan.to,
            same_system: plan.same_system,
            stop: plan.stop,
            pool: Pool::default(),
            report: plan.report,
            links: Links::default(),
            queue: Queue::default(),
            jobs: plan.jobs.max(1),
            tops: Mutex::default(),
            fatal: Mutex::default(),
            aborted: AtomicBool::new(false),
        };
        copy.report.found(files.len() as u64, files.iter().map(|f| f.meta.bytes()).sum());
        copy.queue.push(dirs.into_iter().map(Task::Dir).chain(files.into_iter().map(Task::File)));
        std::thread::scope(|scope| {
            for _ in 0..copy.jobs {
                scope.spawn(|| copy.thread());
            }
        });
        let outcome = copy.report.end(copy.stop.is_set());
        match copy.fatal.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(fatal) if !copy.stop.is_set() => Err(fatal),
            _ => outcome,
        }
    }

    fn thread(&self) {
        while let Some(task) = self.queue.pop() {
            match task {
                // Execute this task even after the user has asked to stop: it finishes a file whose copy has started,
                // and removes the temporary name if the file is incomplete.
                Task::Help(body) => self.help(body),
                _ if self.stopped() => {}
                Task::Dir(job) => self.directory(job),
                Task::File(job) => self.file(job),
            }
            self.queue.done();
        }
    }

    fn stopped(&self) -> bool {
        self.stop.is_set() || self.aborted.load(Ordering::Relaxed)
    }

    fn means(&self) -> TransferContext<'_> {
        TransferContext { from: &self.from, to: &self.to, pool: &self.pool, report: &self.report, stop: &self.stop }
    }

    fn fail(&self, path: &[u8], failure: &Failure) {
        match failure.code {
            // Do not report for each file that the user stopped the copy: the summary reports this once.
            Exit::Interrupted => {}
            Exit::Unreachable => {
                let mut fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
                fatal.get_or_insert_with(|| failure.clone());
                self.aborted.store(true, Ordering::Relaxed);
            }
            _ => self.report.fail(path, failure),
        }
    }

    fn directory(&self, job: DirJob) {
        let path = job.location.path.clone();
        let (Into::Name(above, _) | Into::Existing(above)) = &job.into;
        let above = above.clone();
        match self.try_directory(job) {
            Ok(()) => self.report.finished(&self.report.counts().directories),
            Err(failure) => self.fail(&path, &failure),
        }
        self.release(above);
    }

    fn try_directory(&self, job: DirJob) -> Result<(), Failure> {
        if self.same_system && job.location.node.as_ref().is_some_and(|node| self.is_top(node.id)) {
            return Err(Failure::new("a directory cannot be copied into itself"));
        }
        let entries = self.from.list(&job.location)?;
        let folder = match job.into {
            Into::Existing(folder) => {
                if let Some(node) = &folder.location.node {
                    self.tops.lock().unwrap_or_else(PoisonError::into_inner).insert(node.id);
                }
                folder
            }
            Into::Name(parent, name) => {
                // The user of this process needs access to the new directory until the copy sets its final attributes.
                // Other users never get access that the final mode denies.
                let mode = job.meta.attrs.mode & 0o777 | 0o700;
                let made = self.to.mkdir(&parent.location, &name, mode);
                let (location, _) = made.map_err(|e| e.of(named(&parent.location, &name)))?;
                if let (None, Some(node)) = (&parent.parent, &location.node) {
                    self.tops.lock().unwrap_or_else(PoisonError::into_inner).insert(node.id);
                }
                // Set the xattrs of a directory before creating files in it: a policy in the xattrs decides how these
                // files are laid out.
                self.copy_xattrs(&job.location, &location, None);
                Arc::new(Folder { location, attrs: Some(job.meta.attrs), parent: Some(parent) })
            }
        };
        let (mut names, mut bytes) = (0, 0);
        let tasks = entries.into_iter().map(|entry| match entry.meta.attrs.kind {
            FileKind::Directory => Task::Dir(DirJob {
                location: entry.location,
                meta: entry.meta,
                into: Into::Name(folder.clone(), entry.name),
            }),
            _ => {
                names += 1;
                bytes += entry.meta.bytes();
                Task::File(FileJob {
                    location: entry.location,
                    meta: entry.meta,
                    folder: folder.clone(),
                    name: entry.name,
                })
            }
        });
        let tasks: Vec<_> = tasks.collect();
        self.report.found(names, bytes);
        self.queue.push(tasks);
        self.release(folder);
        Ok(())
    }

    /// Returns the path of a file at the destination, formatted for messages.
    fn target(job: &FileJob) -> String {
        named(&job.folder.location, &job.name)
    }

    fn is_top(&self, id: FileId) -> bool {
        self.tops.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Drops a reference to a destination directory. When the last reference is dropped, sets the final attributes of
    /// the directory, and then drops the reference to its parent.
    fn release(&self, folder: Arc<Folder>) {
        let mut next = Some(folder);
        while let Some(folder) = next.and_then(Arc::into_inner) {
            if let Some(attrs) = folder.attrs.filter(|_| !self.stopped())
                && let Err(failure) = self.to.apply(&folder.location, &attrs)
            {
                self.fail(&folder.location.path, &failure);
            }
            next = folder.parent;
        }
    }

    /// Copies the xattrs of a file or directory. Reports an error if an xattr cannot be copied, but continues the copy
    /// of the file.
    fn copy_xattrs(&self, from: &Location, to: &Location, open: Option<&side::Open>) {
        let copied = self.from.xattrs(from).and_then(|xattrs| {
            xattrs.iter().try_for_each(|xattr| {
                let name = crate::show::path(&xattr.name);
                let set = self.to.set_xattr(to, open, xattr).map_err(|e| e.about(format!("xattr {name}")));
                set.map_err(|e| e.of(crate::show::path(&to.path)))
            })
        });
        if let Err(failure) = copied {
            self.fail(&from.path, &failure);
        }
    }

    fn file(&self, job: FileJob) {
        let (attrs, dev) = (job.meta.attrs, job.meta.dev);
        let outcome = match attrs.kind {
            FileKind::Symlink => self.symlink(&job).map(|()| &self.report.counts().symlinks),
            FileKind::Regular if attrs.nlink > 1 => match self.links.turn((dev, attrs.id.0), job) {
                LinkAction::Wait => return,
                LinkAction::Copy(job) => return self.regular(job),
                LinkAction::Link(job, to) => return self.hard_link(job, to),
            },
            FileKind::Regular => return self.regular(job),
            _ => self.special(&job).map(|()| &self.report.counts().special),
        };
        match outcome {
            Ok(counter) => self.report.finished(counter),
            Err(failure) => self.fail(&job.location.path, &failure),
        }
        self.release(job.folder);
    }

    /// Makes a symlink, hard link or special file, which needs no data. If another file has the name, makes the new
    /// file under a temporary name, and renames it over the other file.
    fn make(
        &self,
        job: &FileJob,
        make: impl Fn(&Location, &[u8]) -> Result<Option<Location>, Failure>,
    ) -> Result<(), Failure> {
        let made = self.make_or_replace(job, make);
        made.map_err(|e| e.of(Self::target(job)))
    }

    fn make_or_replace(
        &self,
        job: &FileJob,
        make: impl Fn(&Location, &[u8]) -> Result<Option<Location>, Failure>,
    ) -> Result<(), Failure> {
        let dir = &job.folder.location;
        if make(dir, &job.name)?.is_some() {
            return Ok(());
        }
        let temporary = temporary_name()?;
        let known = |e: Failure| e.renamed(&temporary, &job.name);
        if make(dir, &temporary).map_err(known)?.is_none() {
            return Err(Failure::new("the name of the temporary file is taken").next("run the same command again"));
        }
        let renamed = self.to.rename(dir, &temporary, &job.name);
        // rename(2) does nothing if both names are links to the same file (POSIX). So the temporary name still exists;
        // remove it.
        let removed = self.to.unlink(dir, &temporary);
        renamed.and(removed).map_err(known)
    }

    fn symlink(&self, job: &FileJob) -> Result<(), Failure> {
        let target = self.from.readlink(&job.location)?;
        self.make(job, |dir, name| {
            let made = self.to.symlink(dir, name, &target)?;
            made.map(|location| self.to.apply(&location, &job.meta.attrs).map(|()| location)).transpose()
        })
    }

    fn special(&self, job: &FileJob) -> Result<(), Failure> {
        self.make(job, |dir, name| {
            let made = self.to.mknod(dir, name, &job.meta.attrs)?;
            made.map(|location| self.to.apply(&location, &job.meta.attrs).map(|()| location)).transpose()
        })
    }

    fn hard_link(&self, job: FileJob, to: Location) {
        self.report.moved(0, job.meta.attrs.size);
        match self.make(&job, |dir, name| self.to.link(&to, dir, name)) {
            Ok(()) => self.report.finished(&self.report.counts().hard_links),
            Err(failure) => self.fail(&job.location.path, &failure),
        }
        self.release(job.folder);
    }

    fn regular(&self, job: FileJob) {
        let hands = usize::try_from(job.meta.attrs.size.div_ceil(CHUNK)).unwrap_or(self.jobs).clamp(1, self.jobs);
        match self.begin(&job) {
            Err(failure) => self.settle(job, Err(failure)),
            Ok((source, sink, location, temporary)) => {
                let body = Arc::new(Body::new(job, source, sink, location, temporary));
                self.queue.push((1..hands).map(|_| Task::Help(body.clone())));
                self.help(body);
            }
        }
    }

    fn begin(&self, job: &FileJob) -> Result<(side::Open, side::Open, Location, Vec<u8>), Failure> {
        let source = self.from.open(&job.location)?;
        let temporary = temporary_name()?;
        let made = self.to.create(&job.folder.location, &temporary);
        let (sink, location) = made.map_err(|e| e.renamed(&temporary, &job.name).of(Self::target(job)))?;
        Ok((source, sink, location, temporary))
    }

    fn help(&self, body: Arc<Body>) {
        body.work(&self.means());
        // Several threads may copy a large file. The thread that drops the last reference to this transfer completes
        // the file.
        if let Some(body) = Arc::into_inner(body) {
            self.complete(body);
        }
    }

    fn complete(&self, body: Body) {
        let (failure, written) = (body.failure(), body.written());
        let Body { job, source, sink, location, temporary, .. } = body;
        if let Err(failure) = self.from.close(source) {
            tracing::debug!(
                name = crate::show::path(&job.location.path),
                error = failure.what,
                "cannot close the source of a copy"
            );
        }
        let dir = &job.folder.location;
        let outcome = match failure {
            Some(failure) => Err(failure),
            None => self.stop.check().and_then(|()| {
                self.copy_xattrs(&job.location, &location, Some(&sink));
                let finished = self.to.finish(sink, written, &job.meta.attrs, dir, [&temporary, &job.name]);
                finished.map_err(|e| e.renamed(&temporary, &job.name).of(Self::target(&job)))
            }),
        };
        if outcome.is_err()
            && let Err(left) = self.to.unlink(dir, &temporary)
        {
            let (name, dir) = (crate::show::path(&temporary), crate::show::path(&dir.path));
            tracing::warn!(name, dir, error = left.what, "cannot remove a temporary file");
        }
        self.settle(job, outcome.map(|()| location));
    }

    /// Reports that the copy of a file is complete or has failed. Then queues the names of this source file that waited
    /// for the copy.
    fn settle(&self, job: FileJob, outcome: Result<Location, Failure>) {
        let id = (job.meta.dev, job.meta.attrs.id.0);
        let linked = job.meta.attrs.nlink > 1;
        let waiting = match outcome {
            Ok(location) => {
                self.report.finished(&self.report.counts().files);
                tracing::info!(from = crate::show::path(&job.location.path), to = Self::target(&job), "copied");
                if linked { self.links.done(id, location.renamed(&job.folder.location, &job.name)) } else { Vec::new() }
            }
            Err(failure) => {
                self.fail(&job.location.path, &failure);
                if linked { self.links.failed(id) } else { Vec::new() }
            }
        };
        self.queue.push(waiting.into_iter().map(Task::File));
        self.release(job.folder);
    }
}
