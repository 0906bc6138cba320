//! Collection of orphaned objects: a background task that deletes objects that no file uses.
//!
//! A write that was in flight while its file was removed or moved can create an object again, which no list of the
//! namespace names. It cannot be mistaken for another file's object: inode numbers are never reused. So the mgr lists
//! all objects of each iod from time to time, slowly, and removes those that no file uses.
//!
//! Such writes are rare. Many objects without files are a sign of another problem, such as damage that hides records of
//! the namespace. Then they may be the last copy of a user's data, and are left for `weir fsck` to show.
//!
//! The mgr claims every stream of a file id below its counter, because file ids are never reused: all objects of a gone
//! file go, whatever their stream. Of a file that exists, it claims the objects of streams below that of the layout
//! record: a late write has created them again after a move. Objects of later streams stay. The mgr claims no object
//! whose head cannot be read, is that of something else, or has a newer version.

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

/// Interval between two passes over an iod that stays up.
const EVERY: Duration = Duration::from_secs(6 * 3600);
/// Interval of the checks whether an iod is due.
const LOOK: Duration = Duration::from_secs(2);
/// Objects listed per request.
const PAGE: u32 = 256;
/// Seconds of rest for each second of listing.
const REST: u32 = 9;
/// If one iod has more objects without files than this, the result is not trusted.
const STRAYS_MAX: usize = 64;
/// Shortest rest.
const REST_MIN: Duration = Duration::from_millis(5);

/// The collection: from each iod when it has come up and the grace period is over, and again every few hours.
pub(super) struct CollectOrphans {
    volume: Arc<Volume>,
    server: Arc<NfsServer>,
    came_up: watch::Receiver<u64>,
    /// Per iod: the link of the last pass, and its time.
    walked: HashMap<u16, (Arc<Link>, Instant)>,
}

impl Job for CollectOrphans {
    const NAME: &'static str = "collecting objects without files";

    fn new(context: &Context) -> Self {
        let (volume, server) = (context.volume.clone(), context.server.clone());
        CollectOrphans { volume, server, came_up: context.came_up(), walked: HashMap::new() }
    }

    async fn due(&mut self) {
        tokio::select! {
            // This cannot fail: `volume` keeps the sender.
            _ = self.came_up.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.came_up.mark_unchanged();
        let CollectOrphans { volume, server, walked, .. } = self;
        // Returning clients may still write under capabilities from before the restart.
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

/// Lists all objects of an iod once, then removes those without files if the result is plausible.
async fn walk(volume: &Volume, link: &Link) -> Result<(), Status> {
    let strays = strays(volume, link).await?;
    let damaged = volume.namespace.standing().counters.corrupt;
    if strays.len() > STRAYS_MAX || (damaged > 0 && !strays.is_empty()) {
        let iod = link.hello.iod;
        tracing::warn!(%iod, damaged, "removed no object without a file: there are implausibly many, or the metadata store is damaged; run weir fsck");
        add(&volume.counters.objects_spared, strays.len() as u64);
        return Ok(());
    }
    for (next, entry) in strays {
        // Check again: the file may have changed since the object was listed.
        if is_stray(volume, next, &entry)? {
            objects::remove(link, &entry).await?;
            add(&volume.counters.objects_collected, 1);
            tracing::info!(object = %entry.object, iod = %link.hello.iod, "removed an object that no file uses");
        }
    }
    Ok(())
}

/// Returns the objects of an iod that belong to no file, each with the first inode number that was free before it was
/// listed. Stops soon after [`STRAYS_MAX`].
async fn strays(volume: &Volume, link: &Link) -> Result<Vec<(FileId, ListEntry)>, Status> {
    let (mut after, mut left): (Option<ObjectId>, u64) = (None, 0);
    let mut strays = Vec::new();
    loop {
        let begun = Instant::now();
        // Read before the list: an object from this number on may belong to a file created since.
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

/// Returns whether no file uses an object, so that the mgr may delete the object. `next` is the first inode number that
/// was free before the object was listed.
fn is_stray(volume: &Volume, next: FileId, entry: &ListEntry) -> Result<bool, Status> {
    let file = entry.object.file;
    let is_ours = entry.head == HeadState::Own && file >= volume.kept_below;
    Ok(is_ours && (is_of_no_file(volume, next, file)? || is_replaced(volume, entry.object)?))
}

/// Returns whether an object is of an earlier stream than those that its file uses, and on no deletion list. Streams
/// only rise, so no layout will name the object again.
fn is_replaced(volume: &Volume, object: ObjectId) -> Result<bool, Status> {
    let info = match volume.namespace.info(object.file) {
        Err(Status::Stale | Status::Corrupt) => return Ok(false),
        info => info?,
    };
    // `Volume::objects` has logged a record that cannot be used.
    let Ok(Some(used)) = volume.objects(&info) else { return Ok(false) };
    Ok(object.stream < used.object().stream && volume.namespace.unused_of(object.file)?.is_none())
}

/// Returns whether the objects of `file` belong to no file and are in no deletion list. `next` is from before they were
/// listed.
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
