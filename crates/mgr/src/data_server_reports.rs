//! Reports of data servers: iods report the writes of kernel clients, and ask how long files are (NEWS and LENGTHS).

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
use wire::native::{FileLength, Length, LengthQuestion, LengthsArgs, NewsArgs, Rights, STORE_OBJECT};

/// Starts the tasks that process the reports and questions of an iod until it is gone.
pub(crate) fn listen(volume: &Arc<Volume>, number: u16, link: &Arc<Link>) -> JoinSet<()> {
    let mut listener = JoinSet::new();
    task::spawn_in(&mut listener, follow(volume.clone(), number, link.clone()));
    task::spawn_in(&mut listener, tell_lengths(volume.clone(), number, link.clone()));
    listener
}

/// Requests the reports of one iod until it is gone.
async fn follow(volume: Arc<Volume>, number: u16, link: Arc<Link>) {
    let mut known = 0;
    loop {
        let cap = link.capability(STORE_OBJECT, Generation(0), Rights::ADMIN);
        let Ok(news) = link.news(&NewsArgs { cap, known }).await else { return };
        // Record all reports at once, so that they share a flush of the metadata.
        let heard = join_all(news.written.iter().map(|object| volume.written_at(*object, number))).await;
        add(&volume.counters.news, heard.len() as u64);
        if let Some(error) = heard.into_iter().find_map(Result::err) {
            // The iod repeats the reports in its next answer.
            tracing::warn!(number, "cannot record the write reports of an iod yet: {error}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        }
        known = news.number;
    }
}

/// Answers the questions of one iod about file lengths until it is gone.
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
    /// Returns the length of a file and the least length of its object on an iod, if the mgr knows them. It knows them
    /// if no client has a layout to write the file, all earlier writers have reported, and no truncation is in
    /// progress. The function does not wait, because other requests may wait for the iod that asks.
    ///
    /// The length is read last: a write after the other checks is concurrent with the question.
    fn known_length(&self, object: ObjectId, iod: u16) -> Option<FileLength> {
        let file = object.file;
        if self.grants.written(file) || self.notes.is_untold(file) || self.notes.cut(file).is_some() {
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

    /// Records that a client without reports of its own has written the object of a file on this iod durably.
    async fn written_at(&self, object: ObjectId, number: u16) -> Result<(), Status> {
        let file = object.file;
        let outcome = async {
            // The lock excludes truncations, so that the length of the object is read when none is in progress.
            let _shared = self.shared(file).await?;
            let info = self.namespace.info(file)?;
            // Bytes of an object that was replaced are no bytes of the file.
            let current = |objects: &Opened<'_>| objects.object() == object;
            let Some(objects) = self.objects(&info)?.filter(current) else { return Ok(()) };
            let end = objects.end_at(number).await?;
            // With root's credentials: the writer's permissions were checked when it got its layout.
            let root = types::Cred::root();
            self.namespace.set_size(&root, now(), file, end, None).await.map(drop)
        };
        match outcome.await {
            // The file is gone, so no client can read it.
            Err(Status::Stale) => Ok(()),
            other => other,
        }
    }
}
