//! Orphan collection: a background job that deletes objects that no file uses.
//!
//! A write in flight may reach an iod after the mgr has deleted or moved the file. The iod then creates the object
//! again, and no record of the namespace names this object. The object cannot belong to another file, because inode
//! numbers are never reused. So the mgr periodically lists all objects of each iod and deletes the objects that no file
//! uses.
//!
//! Late writes of this kind are rare. Many objects without files are a sign of another problem, such as damage that
//! hides inode records. The objects may then be the last copy of a user's data. So the mgr keeps them, and `weir fsck`
//! reports them.
//!
//! Which objects the mgr may delete:
//!
//! - If the file does not exist, and its inode number was allocated: the objects of all its streams.
//! - If the file exists: the objects of streams older than the stream in the layout record. A late write has created
//!   them after a move. Also the data logs and the index, unless the file is a log file.
//! - Never an object of a newer stream, and never an object whose header is unreadable, has a newer version, or names
//!   another object.

use super::{Context, Job};
use crate::counters::add;
use crate::fs::NfsServer;
use crate::iods::{Link, objects};
use crate::volume::Volume;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use types::{FileId, ObjectId, Status};
use wire::native::{HeadState, ListEntry};

/// Interval between two passes over the objects of an iod that stays connected.
const EVERY: Duration = Duration::from_secs(6 * 3600);
/// Interval at which the job checks whether a pass over some iod is due.
const LOOK: Duration = Duration::from_secs(2);
/// Largest number of objects that one request to list the objects of an iod returns.
const PAGE: u32 = 256;
/// Seconds for which the job sleeps after each second of listing objects, so that the iod has time for the requests of
/// clients.
const REST: u32 = 9;
/// Largest number of objects without a file that the job deletes from one iod in one pass. If an iod has more such
/// objects, the job deletes none of them and logs a warning.
const STRAYS_MAX: usize = 64;
/// Shortest sleep between two requests that list the objects of an iod.
const REST_MIN: Duration = Duration::from_millis(5);

/// The job that deletes objects that no file uses. After the grace period, the job makes one pass over each connected
/// iod, and repeats the pass every six hours.
pub(super) struct CollectUnownedObjects {
    volume: Arc<Volume>,
    server: Arc<NfsServer>,
    came_up: watch::Receiver<u64>,
    /// For each iod number: the link (connections) to the iod during the last complete pass over its objects, and when
    /// this pass ended.
    walked: HashMap<u16, (Arc<Link>, Instant)>,
}

impl Job for CollectUnownedObjects {
    const NAME: &'static str = "collecting objects without files";

    fn new(context: &Context) -> Self {
        let (volume, server) = (context.volume.clone(), context.server.clone());
        CollectUnownedObjects { volume, server, came_up: context.came_up(), walked: HashMap::new() }
    }

    async fn due(&mut self) {
        tokio::select! {
            // Wait until an iod connects. This wait fails only if the sender of the notification is dropped, and
            // `volume` keeps the sender, so ignore the result.
            _ = self.came_up.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.came_up.mark_unchanged();
        let CollectUnownedObjects { volume, server, walked, .. } = self;
        // During the grace period, clients may still write with capabilities from before the restart of the mgr, so
        // delete no objects yet.
        if server.inspect(|state| state.in_grace()) {
            return Ok(());
        }
        let mut outcome = Ok(());
        for (number, link) in volume.iods.up() {
            let due = walked.get(&number).is_none_or(|(old, when)| !Arc::ptr_eq(old, &link) || when.elapsed() >= EVERY);
            if !due {
                continue;
            }
            match walk(volume, &link).await {
                Ok(()) => drop(walked.insert(number, (link, Instant::now()))),
                Err(e) => outcome = Err(e),
            }
        }
        outcome
    }

    fn failed(&mut self, error: Status) {
        tracing::debug!("objects without files cannot be collected yet: {error}");
    }
}

/// Lists all objects of an iod once, and then deletes the objects that no file uses. Deletes none if the iod has more
/// than [`STRAYS_MAX`] such objects.
async fn walk(volume: &Volume, link: &Link) -> Result<(), Status> {
    let strays = strays(volume, link).await?;
    let damaged = volume.namespace.status().counters.corrupt;
    if strays.len() > STRAYS_MAX || (damaged > 0 && !strays.is_empty()) {
        let iod = link.hello.iod;
        tracing::warn!(%iod, damaged, "removed no object without a file: there are implausibly many, or the metadata store is damaged; run weir fsck");
        add(&volume.counters.objects_spared, strays.len() as u64);
        return Ok(());
    }
    for (next, entry) in strays {
        // Check again that no file uses the object: the file may have changed after the iod listed the object.
        if is_stray(volume, next, &entry)? {
            objects::remove(link, &entry).await?;
            add(&volume.counters.objects_collected, 1);
            tracing::info!(object = %entry.object, iod = %link.hello.iod, "removed an object that no file uses");
        }
    }
    Ok(())
}

/// Returns the objects of an iod that no file uses, each with the lowest inode number that was unallocated before the
/// iod listed the object. Stops soon after [`STRAYS_MAX`] objects.
async fn strays(volume: &Volume, link: &Link) -> Result<Vec<(FileId, ListEntry)>, Status> {
    let (mut after, mut left): (Option<ObjectId>, u64) = (None, 0);
    let mut strays = Vec::new();
    loop {
        let begun = Instant::now();
        // Read the next inode number before listing the objects. An object with this number or a higher one may belong
        // to a file that was created during the listing.
        let next = volume.namespace.next_id()?;
        let page = objects::list(link, after, PAGE).await?;
        add(&volume.counters.objects_listed, page.entries.len() as u64);
        let last = page.entries.last().map(|entry| entry.object);
        for entry in page.entries {
            left += u64::from(entry.head != HeadState::Own && is_of_no_file(volume, next, entry.object.file)?);
            if is_stray(volume, next, &entry)? {
                strays.push((next, entry));
            }
        }
        match last {
            last @ Some(_) if !page.eof && strays.len() <= STRAYS_MAX => after = last,
            _ => break,
        }
        tokio::time::sleep((begun.elapsed() * REST).max(REST_MIN)).await;
    }
    if left > 0 {
        let iod = link.hello.iod;
        tracing::warn!(%iod, left, "removed no object whose head is damaged or names another object; run weir fsck");
        add(&volume.counters.objects_spared, left);
    }
    Ok(strays)
}

/// Returns whether no file uses an object, so that the mgr may delete it. `next` is the lowest inode number that was
/// unallocated before the iod listed the object.
fn is_stray(volume: &Volume, next: FileId, entry: &ListEntry) -> Result<bool, Status> {
    let file = entry.object.file;
    let is_ours = entry.head == HeadState::Own && file >= volume.kept_below;
    Ok(is_ours && (is_of_no_file(volume, next, file)? || is_replaced(volume, entry.object)?))
}

/// Returns whether a layout swap has replaced the object: the layout record of the file names a newer stream, and the
/// file has no record of unused objects. Stream numbers only grow, so no later layout names the object. A layout swap
/// also replaces all data logs and the index of a log file: a file never becomes a log file again.
fn is_replaced(volume: &Volume, object: ObjectId) -> Result<bool, Status> {
    let info = match volume.namespace.info(object.file) {
        Err(Status::Stale | Status::Corrupt) => return Ok(false),
        info => info?,
    };
    // `Volume::objects` already logs a layout record that the mgr cannot use, so this function does not log it.
    let Ok(Some(used)) = volume.objects(&info) else { return Ok(false) };
    let is_older = match object.is_of_logs() {
        true => used.index().is_none(),
        false => object.stream < used.object().stream,
    };
    Ok(is_older && volume.namespace.unused_of(object.file)?.is_none())
}

/// Returns whether `file` does not exist and is not on the deletion list. `next` is the lowest inode number that was
/// unallocated before the iod listed the objects of `file`.
pub(crate) fn is_of_no_file(volume: &Volume, next: FileId, file: FileId) -> Result<bool, Status> {
    if file >= next {
        return Ok(false);
    }
    match volume.namespace.info(file) {
        Ok(_) | Err(Status::Corrupt) => return Ok(false),
        Err(Status::Stale) => {}
        Err(e) => return Err(e),
    }
    if volume.namespace.unused_of(file)?.is_some() {
        return Ok(false);
    }
    let doomed = volume.namespace.doomed(FileId(file.0.saturating_sub(1)), 1)?;
    Ok(doomed.first().is_none_or(|doomed| doomed.id != file))
}
