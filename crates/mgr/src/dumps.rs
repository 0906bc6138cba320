//! Online dumps of the metadata store: consistent snapshots that the mgr takes while it serves clients.
//!
//! The dump task reads one snapshot of the store and sends the bytes of the dump through a bounded channel. After the
//! snapshot is taken, the mgr stores a new mark, a random number, in its own store and on the iods. The dump does not
//! contain this mark. So the iods detect a store that is restored from the dump as an older copy.

use crate::volume::Volume;
use bytes::Bytes;
use meta::engine::Walk;
use meta::{DumpError, DumpPart};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use wire::admin::{DUMP_PAGE_MAX, DumpArgs, DumpReply};

/// Capacity of the channel from the dump task to the DUMP requests, in messages; each message has one part of the dump.
const WAITING: usize = 4;
/// How long a dump waits for the next page request of its client. While it waits, the metadata store cannot reuse the
/// disk pages of the snapshot.
const IDLE: Duration = Duration::from_secs(120);
/// Estimated number of store records for each file: two records of the inode, and one record of a name.
const RECORDS_PER_FILE: u64 = 3;

// The last page of a dump must have space for a full block and the end mark of the dump.
const _: () = assert!(meta::dump::BLOCK_MAX + 64 < DUMP_PAGE_MAX);

/// The running dump; `None` if no dump runs.
#[derive(Debug, Default)]
pub(crate) struct Dumps(Mutex<Option<Run>>);

/// A running dump. Dropping this value closes the channel, which ends the dump task.
#[derive(Debug)]
struct Run {
    number: u64,
    parts: mpsc::Receiver<DumpPart>,
    task: JoinHandle<Result<(), DumpError>>,
    total: u64,
    /// The last page that the mgr sent, so that the client can request it again.
    last: DumpReply,
}

fn refused(why: impl Into<String>) -> DumpReply {
    DumpReply { refused: Some(why.into()), ..DumpReply::default() }
}

impl Dumps {
    /// Executes one DUMP request: starts a dump, or returns a page of the running dump.
    pub(crate) async fn call(&self, volume: &Arc<Volume>, args: DumpArgs) -> DumpReply {
        let mut running = self.0.lock().await;
        if args.run == 0 {
            // A new dump ends the running dump, because the client of the running dump may no longer request its pages,
            // and must not block other clients.
            *running = None;
            let run = match begin(volume).await {
                Ok(run) => running.insert(run),
                Err(why) => return refused(why),
            };
            return run.next(0).await;
        }
        match running.as_mut().filter(|run| run.number == args.run) {
            Some(run) if run.last.page == args.page => run.last.clone(),
            Some(run) if run.last.page.checked_add(1) == Some(args.page) && !run.last.end => run.next(args.page).await,
            _ => refused("this dump has ended, or another one has begun; begin again"),
        }
    }
}

/// Starts the dump task and waits until the task has taken its snapshot. Then stores a new mark (a random number) on
/// the iods.
async fn begin(volume: &Arc<Volume>) -> Result<Run, String> {
    let cannot = |what: &'static str| move |e| format!("{what}: {e}");
    let number = getrandom::u64().map_err(|e| e.to_string())?.max(1);
    let namespace = volume.namespace.clone();
    let store = crate::store::identity(&namespace).map_err(cannot("cannot read the metadata store"))?;
    let total = namespace.files().unwrap_or(0).saturating_mul(RECORDS_PER_FILE);
    let (tell, mut parts) = mpsc::channel(WAITING);
    let runtime = tokio::runtime::Handle::current();
    let task = tokio::task::spawn_blocking(move || {
        namespace.dump_into(store, net::clock::unix_now(), &mut |part| {
            let sent = runtime.block_on(async { tokio::time::timeout(IDLE, tell.send(part)).await });
            if matches!(sent, Ok(Ok(()))) { Walk::On } else { Walk::Stop }
        })
    });
    if parts.recv().await != Some(DumpPart::Begun) {
        return Err(outcome(task).await.unwrap_or_default());
    }
    volume.iods.leave_mark().await.map_err(cannot("cannot leave a mark on the iods"))?;
    Ok(Run { number, parts, task, total, last: DumpReply::default() })
}

/// Waits for the end of the dump task. Returns why the dump ended early; `None` if the dump is complete.
async fn outcome(task: JoinHandle<Result<(), DumpError>>) -> Option<String> {
    match task.await {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(why.to_string()),
        Err(_) => Some("the dump failed in the mgr: see the log of the mgr".to_owned()),
    }
}

impl Run {
    /// Returns the next page of the dump, with page number `page`.
    async fn next(&mut self, page: u32) -> DumpReply {
        let part = self.parts.recv().await;
        let mut reply = DumpReply { run: self.number, page, records: self.last.records, ..DumpReply::default() };
        match part {
            Some(DumpPart::Bytes { bytes, records }) => {
                reply.bytes = Bytes::from(bytes);
                reply.records += records;
                reply.total = self.total.max(reply.records);
            }
            Some(DumpPart::Begun) => return refused("the dump has begun twice"),
            None => {
                let task = std::mem::replace(&mut self.task, tokio::spawn(async { Ok(()) }));
                if let Some(why) = outcome(task).await {
                    return refused(why);
                }
                reply.total = reply.records;
                reply.end = true;
            }
        }
        self.last = reply.clone();
        reply
    }
}
