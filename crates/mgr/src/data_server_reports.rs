//! Reports of data servers: iods report the writes of kernel clients (WRITE_REPORTS), and request the lengths of files
//! (LENGTHS).

use crate::clock::now;
use crate::counters::add;
use crate::iods::Link;
use crate::kinds::Opened;
use crate::volume::Volume;
use futures_util::future::join_all;
use net::task;
use std::sync::Arc;
use tokio::task::JoinSet;
use types::{Generation, ObjectId, Status};
use wire::native::{FileLength, Length, LengthQuestion, LengthsArgs, Rights, STORE_OBJECT, WriteReportsArgs};

/// Starts two tasks that process the write reports and the length requests of an iod. The tasks end when the link to
/// the iod is closed.
pub(crate) fn listen(volume: &Arc<Volume>, number: u16, link: &Arc<Link>) -> JoinSet<()> {
    let mut listener = JoinSet::new();
    task::spawn_in(&mut listener, follow(volume.clone(), number, link.clone()));
    task::spawn_in(&mut listener, tell_lengths(volume.clone(), number, link.clone()));
    listener
}

/// Requests and records the write reports of one iod, until the link to the iod is closed.
async fn follow(volume: Arc<Volume>, number: u16, link: Arc<Link>) {
    let mut known = 0;
    loop {
        let cap = link.capability(STORE_OBJECT, Generation(0), Rights::ADMIN);
        let Ok(reports) = link.write_reports(&WriteReportsArgs { cap, known }).await else { return };
        // Record all reports of a WRITE_REPORTS reply concurrently, so that they share one flush of the metadata store.
        let heard = join_all(reports.written.iter().map(|object| volume.written_at(*object, number))).await;
        add(&volume.counters.news, heard.len() as u64);
        if let Some(error) = heard.into_iter().find_map(Result::err) {
            // Do not update `known`, the number of the last recorded reply, so that the iod sends these reports again
            // in its next reply.
            tracing::warn!(number, "cannot record the write reports of an iod yet: {error}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        }
        known = reports.number;
    }
}

/// Calls LENGTHS on one iod until the link to the iod is closed. The iod's reply names files, and the next call
/// contains the lengths of these files.
async fn tell_lengths(volume: Arc<Volume>, number: u16, link: Arc<Link>) {
    let mut answers = Vec::new();
    loop {
        let cap = link.capability(STORE_OBJECT, Generation(0), Rights::ADMIN);
        let Ok(reply) = link.lengths(&LengthsArgs { cap, answers }).await else { return };
        let length = |object| volume.known_length(object, number);
        let answer = |asked: &LengthQuestion| Length { number: asked.number, length: length(asked.object) };
        answers = reply.asked.iter().map(answer).collect();
        add(&volume.counters.lengths_asked, answers.len() as u64);
        add(&volume.counters.lengths_unknown, answers.iter().filter(|answer| answer.length.is_none()).count() as u64);
    }
}

impl Volume {
    /// Returns the length of a file, and the length that its object on the iod must have at least; `None` if the mgr
    /// does not know these lengths. The mgr knows the lengths only while no client has a write layout of the file and
    /// no truncation is in progress. All earlier writers must also have reported their writes. The function sends no
    /// request to an iod, because all other length requests of this iod wait until the function returns.
    ///
    /// The function reads the length after all checks. So a write after the checks is concurrent with the iod's request
    /// for the length, and the returned length need not include it.
    fn known_length(&self, object: ObjectId, iod: u16) -> Option<FileLength> {
        let file = object.file;
        if self.grants.written(file) || self.intents.is_unreported(file) || self.intents.truncation(file).is_some() {
            return None;
        }
        let info = self.regular(file).ok()?;
        let objects = self.objects(&info).ok()?;
        if objects.as_ref().is_some_and(|objects| objects.object() != object) {
            return None;
        }
        let least = objects.and_then(|objects| objects.index_on(iod).map(|index| objects.least(index)));
        Some(FileLength { file: info.attrs.size, least: least.unwrap_or(0) })
    }

    /// Records that a kernel client has durably written the object of a file on this iod, and has not reported the
    /// write to the mgr itself.
    async fn written_at(&self, object: ObjectId, number: u16) -> Result<(), Status> {
        let file = object.file;
        let outcome = async {
            // The shared lock excludes truncations, so that the mgr does not read the length of the object during a
            // truncation.
            let _shared = self.shared(file).await?;
            let info = self.namespace.info(file)?;
            // If a move has replaced the object that the iod reports, this object no longer has bytes of the file, so
            // ignore the report.
            let current = |objects: &Opened<'_>| objects.object() == object;
            let Some(objects) = self.objects(&info)?.filter(current) else { return Ok(()) };
            let end = objects.end_at(number).await?;
            // Use root's credentials: the mgr checked the permissions of the client when it granted the layout to the
            // client.
            let root = types::Cred::root();
            self.namespace.set_size(&root, now(), file, end, None).await.map(drop)
        };
        match outcome.await {
            // The file was deleted, so no client can read its size, and the report needs no record.
            Err(Status::Stale) => Ok(()),
            other => other,
        }
    }
}
