//! Listening to what iods tell of clients that write past the mgr by NFS, and say nothing themselves.

use crate::counters::add;
use crate::iods::Link;
use crate::room::{Room, now};
use futures_util::future::join_all;
use net::task;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::task::JoinSet;
use types::{FileId, Generation, Status};
use wire::native::{FileLength, Length, LengthQuestion, LengthsArgs, NewsArgs, Rights, STORE_OBJECT};

/// Listens to every iod that comes up, for ever.
pub(crate) async fn listen(room: Arc<Room>) {
    let mut came_up = room.iods.came_up.subscribe();
    let mut listening: HashMap<u16, (Arc<Link>, JoinSet<()>)> = HashMap::new();
    loop {
        came_up.mark_unchanged();
        for (number, link) in room.iods.up().into_iter().filter(|(_, link)| link.has_news()) {
            if listening.get(&number).is_some_and(|(old, _)| Arc::ptr_eq(old, &link)) {
                continue;
            }
            let mut listener = JoinSet::new();
            task::spawn_in(&mut listener, follow(room.clone(), number, link.clone()));
            task::spawn_in(&mut listener, tell_lengths(room.clone(), number, link.clone()));
            listening.insert(number, (link, listener));
        }
        // The sender lives in `room`.
        let _ = came_up.changed().await;
    }
}

/// Asks one iod for news, again and again until it is gone.
async fn follow(room: Arc<Room>, number: u16, link: Arc<Link>) {
    let mut known = 0;
    loop {
        let cap = link.capability(STORE_OBJECT, Generation(0), Rights::ADMIN);
        let Ok(news) = link.news(&NewsArgs { cap, known }).await else { return };
        // All at once: they share the flush of the metadata.
        let heard = join_all(news.written.iter().map(|object| room.written_at(*object, number))).await;
        add(&room.counters.news, heard.len() as u64);
        if let Some(error) = heard.into_iter().find_map(Result::err) {
            // Told again with the next answer.
            tracing::warn!(number, "what a client wrote cannot be taken note of yet: {error}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        }
        known = news.number;
    }
}

/// Answers one iod how long files are, again and again until it is gone.
async fn tell_lengths(room: Arc<Room>, number: u16, link: Arc<Link>) {
    let mut answers = Vec::new();
    loop {
        let cap = link.capability(STORE_OBJECT, Generation(0), Rights::ADMIN);
        let Ok(reply) = link.lengths(&LengthsArgs { cap, answers }).await else { return };
        let length = |file| room.known_length(file, number);
        let answer = |asked: &LengthQuestion| Length { number: asked.number, length: length(asked.object) };
        answers = reply.asked.iter().map(answer).collect();
        add(&room.counters.lengths_asked, answers.len() as u64);
        add(&room.counters.lengths_unknown, answers.iter().filter(|answer| answer.length.is_none()).count() as u64);
    }
}

impl Room {
    /// How long a file is, and its object on an iod at least, when that is known here: nobody has a layout to write past the mgr, whoever had one has told all, and no
    /// cut is under way. Waits for nothing, as the iod that asks may be waited for.
    ///
    /// The length is looked at last: what is written after the others were looked at is written while the question is open.
    fn known_length(&self, file: FileId, iod: u16) -> Option<FileLength> {
        if self.grants.written(file) || self.notes.is_untold(file) || self.notes.cut(file).is_some() {
            return None;
        }
        let info = self.regular(file).ok()?;
        let objects = self.objects(&info).ok()?;
        let least = objects.and_then(|objects| objects.index_on(iod).map(|index| objects.least(index)));
        Some(FileLength { file: info.attrs.size, least: least.unwrap_or(0) })
    }

    /// A client has written the object of a file on this iod, durably, and tells nobody.
    async fn written_at(&self, file: FileId, number: u16) -> Result<(), Status> {
        let outcome = async {
            // Not beside a cut: how long the object is now is looked at when none is under way.
            let _shared = self.shared(file).await?;
            let info = self.namespace.info(file)?;
            let Some(objects) = self.objects(&info)? else { return Ok(()) };
            let end = objects.end_at(number).await?;
            // Not on behalf of anybody: the writer's permissions were checked when it got its layout.
            let root = types::Cred::root();
            self.namespace.set_size(&root, now(), file, end, None).await.map(drop)
        };
        match outcome.await {
            // It is gone, and nobody will ask for it.
            Err(Status::Stale) => Ok(()),
            other => other,
        }
    }
}
