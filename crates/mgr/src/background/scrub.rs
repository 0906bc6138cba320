//! The scrub: a background job that reads all data of all iods to find damage. The scrub has an optional rate limit,
//! and continues after a restart of the mgr.

mod job;

use super::Context;
use crate::clock::now;
use crate::iods::Link;
use crate::iods::objects;
use crate::kinds::Opened;
use crate::paths;
use crate::proxy::Suspect;
use crate::volume::Volume;
use job::{Found, Job};
use meta::{Embedded, Namespace};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::{ByteRange, FileId, Generation, ObjectId, Status};
use wire::admin::{
    SCRUB_FINDINGS_MAX, SCRUB_PATHS_MAX, SCRUB_RANGES_MAX, ScrubAction, ScrubArgs, ScrubFinding, ScrubReply, ScrubState,
};
use wire::native::{self, Damage, LIST_MAX, Procedure, Rights, STORE_OBJECT};
use xdr::Xdr;

const KEY: &[u8] = b"scrub";
/// Number of bytes that one SCRUB request to an iod reads. With a rate limit, a request reads at most this number.
const STEP: u32 = 4 << 20;
/// Smallest number of bytes that one SCRUB request to an iod reads with a rate limit.
const STEP_MIN: u64 = 64 << 10;
/// Interval at which the scrub stores its progress. After a crash, the scrub repeats the work that it did since it last
/// stored its progress.
const SAVE: Duration = Duration::from_secs(2);
/// Pause before the scrub retries a request to an iod that is down.
const RETRY: Duration = Duration::from_secs(1);
/// Number of findings of one scrub that the mgr logs with the paths of the files. Later findings are logged with inode
/// numbers only.
const LOGGED_MAX: usize = 16;

/// The last scrub, whether it is still running or has ended.
#[derive(Debug)]
pub(crate) struct Scrubs {
    namespace: Arc<Namespace<Embedded>>,
    job: Mutex<Job>,
    /// Locked while a task stores the record of the scrub, so that an older state of the scrub cannot overwrite a newer
    /// one.
    saving: tokio::sync::Mutex<()>,
    /// Notified when a SCRUB request of the admin program starts or cancels a scrub.
    changed: Notify,
}

impl Scrubs {
    /// Loads the record of the last scrub from the metadata store.
    pub(crate) fn load(namespace: Arc<Namespace<Embedded>>) -> Result<Self, Status> {
        let job = match namespace.registry(KEY)? {
            None => Job::default(),
            Some(record) => Job::from_bytes(&record).unwrap_or_else(|e| {
                tracing::error!("ignored the record of the last scrub, which is damaged: {e}");
                Job::default()
            }),
        };
        Ok(Scrubs { namespace, job: Mutex::new(job), saving: tokio::sync::Mutex::default(), changed: Notify::new() })
    }

    fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the current state of the scrub durably in the metadata store.
    async fn save(&self) -> Result<(), Status> {
        let _one = self.saving.lock().await;
        let record = self.job().to_bytes();
        self.namespace.registry_put(now(), KEY, Some(&record)).await
    }

    /// Changes the state of the scrub with the serial number `serial`, if this scrub is still running.
    fn update(&self, serial: u64, change: impl FnOnce(&mut Job)) {
        let mut job = self.job();
        if job.serial == serial && job.state == ScrubState::Running {
            change(&mut job);
        }
    }

    /// Returns the state of the running scrub, or `None` if no scrub is running.
    fn running(&self) -> Option<Job> {
        let job = self.job();
        (job.state == ScrubState::Running).then(|| job.clone())
    }

    /// Returns the damaged ranges that the last scrub found: iod number, file, and range of the file's object on this
    /// iod. Leaves out findings about whole objects, and about data logs and indexes.
    pub(crate) fn damaged_ranges(&self) -> Vec<(u16, FileId, ByteRange)> {
        let inside = |found: &&Found| found.finding.damage != Damage::Object && !found.finding.object.is_of_logs();
        let range = |finding: &native::Finding| ByteRange { offset: finding.offset, len: finding.len };
        let job = self.job();
        let found = job.findings.iter().filter(inside);
        found.map(|found| (found.iod, found.finding.object.file, range(&found.finding))).collect()
    }

    fn start(&self, iods: Vec<u16>, rate: u64) -> Result<(), String> {
        let mut job = self.job();
        if job.state == ScrubState::Running {
            return Err("a scrub is running already; wait for it or cancel it".into());
        }
        let started = net::clock::unix_now();
        let serial = job.serial + 1;
        *job = Job { serial, state: ScrubState::Running, started, rate, left: iods, ..Job::default() };
        Ok(())
    }
}

/// Executes a SCRUB request of the admin program: starts, cancels or shows a scrub.
pub(crate) async fn answer(volume: &Volume, args: ScrubArgs) -> Result<ScrubReply, Status> {
    let scrubs = &volume.scrubs;
    let mut refused = None;
    match args.action {
        ScrubAction::Status => {}
        ScrubAction::Start => match scrubs.start(volume.iods.numbers(), args.rate) {
            Ok(()) => {
                // Store the record of the scrub before the reply, so that the mgr continues the scrub after a crash.
                scrubs.save().await?;
                scrubs.changed.notify_one();
            }
            Err(why) => refused = Some(why),
        },
        ScrubAction::Cancel => {
            let serial = scrubs.job().serial;
            scrubs.update(serial, |job| job.state = ScrubState::Cancelled);
            scrubs.save().await?;
            scrubs.changed.notify_one();
        }
    }
    let job = scrubs.job().clone();
    let findings = match args.findings_from {
        Some(from) => locate(volume, job.findings.get(from as usize..).unwrap_or_default()).await?,
        None => Vec::new(),
    };
    Ok(ScrubReply {
        refused,
        state: job.state,
        problem: (!job.problem.is_empty()).then_some(job.problem),
        started: job.started,
        rate: job.rate,
        objects: job.objects,
        objects_total: job.objects_total,
        bytes: job.bytes,
        bytes_total: job.bytes_total,
        verified: job.verified,
        rebuilt: job.rebuilt,
        found: job.found,
        kept: job.findings.len() as u32,
        findings,
    })
}

/// Translates findings of a scrub to files, paths and byte ranges of these files. Returns at most as many findings as
/// one reply holds.
async fn locate(volume: &Volume, found: &[Found]) -> Result<Vec<ScrubFinding>, Status> {
    let found = &found[..found.len().min(SCRUB_FINDINGS_MAX)];
    let files: Vec<FileId> = found.iter().map(|f| f.finding.object.file).collect();
    let paths = if files.is_empty() { BTreeMap::new() } else { paths::of(&volume.namespace, &files).await? };
    let each = found.iter().map(|f| {
        let (object, range) = (f.finding.object, ByteRange { offset: f.finding.offset, len: f.finding.len });
        let mut ranges = ranges(volume, f.iod, object, range);
        let more = ranges.len() > SCRUB_RANGES_MAX;
        ranges.truncate(SCRUB_RANGES_MAX);
        let paths = paths.get(&object.file).into_iter().flatten().take(SCRUB_PATHS_MAX);
        ScrubFinding {
            iod: volume.iods.registered(f.iod).map_or_else(|_| f.iod.to_string(), |iod| iod.id.to_string()),
            object: object.file.0,
            damage: f.finding.damage,
            offset: range.offset,
            len: range.len,
            paths: paths.map(|path| path.clone().into()).collect(),
            ranges,
            more,
        }
    });
    Ok(each.collect())
}

/// Returns the byte ranges of a file that lie in `range` of its object on an iod. An empty `range` stands for the whole
/// object. Returns at most one byte range more than a reply holds, which shows the caller that ranges are missing from
/// the reply. Returns no byte ranges if the file does not exist.
fn ranges(volume: &Volume, iod: u16, object: ObjectId, range: ByteRange) -> Vec<(u64, u64)> {
    let file = stored(volume, object.file).filter(|file| file.object() == object);
    let Some(file) = file else { return Vec::new() };
    let Some(index) = file.index_on(iod) else { return Vec::new() };
    let column = file.column(index);
    let whole = ByteRange { offset: 0, len: file.object_size(file.known().size, column) };
    let range = if range.len == 0 { whole } else { range };
    let ranges = file.file_ranges(column, range).take(SCRUB_RANGES_MAX + 1);
    ranges.map(|range| (range.offset, range.end())).collect()
}

/// Returns a file with its objects; `None` if the file does not exist or its layout record cannot be used.
fn stored(volume: &Volume, file: FileId) -> Option<Opened<'_>> {
    let info = volume.namespace.info(file).ok()?;
    volume.objects(&info).ok()?
}

pub(super) struct Scrub(Arc<Volume>);

impl super::Job for Scrub {
    const NAME: &'static str = "scrubbing";

    fn new(context: &Context) -> Self {
        Scrub(context.volume.clone())
    }

    async fn due(&mut self) {
        while self.0.scrubs.running().is_none() {
            self.0.scrubs.changed.notified().await;
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        let scrubs = &self.0.scrubs;
        let Some(job) = scrubs.running() else { return Ok(()) };
        tokio::select! {
            () = work(&self.0, job.serial) => {}
            () = scrubs.changed.notified() => {}
        }
        scrubs.save().await
    }

    fn failed(&mut self, error: Status) {
        tracing::error!("cannot store the progress of the scrub: {error}");
    }
}

/// Runs the scrub with the serial number `serial` until the scrub is done, failed or cancelled.
async fn work(volume: &Volume, serial: u64) {
    let scrubs = &volume.scrubs;
    let mut saved = Instant::now();
    let mut due = Instant::now();
    while let Some(job) = scrubs.running().filter(|job| job.serial == serial) {
        let worked = match job.left.first() {
            None => return scrubs.update(serial, |job| job.state = ScrubState::Done),
            Some(_) if !job.counted => count(volume, serial, &job.left).await,
            Some(iod) => step(volume, serial, *iod, &job, &mut due).await,
        };
        match worked {
            Ok(()) => {}
            Err(Status::Delay) => {
                scrubs.update(serial, |job| job.problem = "waiting for an iod that cannot be reached".into());
                tokio::time::sleep(RETRY).await;
            }
            Err(e) => {
                tracing::error!("the scrub failed: {e}");
                return scrubs.update(serial, |job| {
                    (job.state, job.problem) =
                        (ScrubState::Failed, format!("an iod refused to continue the scrub: {e}"));
                });
            }
        }
        if saved.elapsed() >= SAVE {
            if let Err(e) = scrubs.save().await {
                tracing::error!("cannot store the progress of the scrub: {e}");
            }
            saved = Instant::now();
        }
    }
}

/// Schedules the repair of a damaged range of an object on an iod, if the file has another copy.
fn heal(volume: &Volume, iod: u16, object: ObjectId, range: ByteRange) {
    let file = object.file;
    let Some(objects) = stored(volume, file).filter(|objects| objects.mirrors() > 1) else { return };
    if let Some(index) = objects.index_on(iod).filter(|_| objects.object() == object) {
        volume.damaged.found(file, &[Suspect { index, range }]);
    }
}

/// Counts the objects on the iods that the scrub reads, and the bytes of these objects, as totals for the progress
/// report.
async fn count(volume: &Volume, serial: u64, iods: &[u16]) -> Result<(), Status> {
    let (mut objects, mut bytes) = (0, 0);
    for iod in iods {
        let mut after = None;
        loop {
            let page = objects::list(&*volume.iods.link(*iod)?, after, LIST_MAX as u32).await?;
            objects += page.entries.len() as u64;
            // The allocated size of an object includes its header of 4096 bytes, but the scrub reads neither the header
            // nor holes. So count the smaller of the object's length and its allocated size without the header.
            let data = page.entries.iter().map(|e| e.size.min(e.allocated.saturating_sub(4096)));
            bytes += data.sum::<u64>();
            match page.entries.last().filter(|_| !page.eof) {
                Some(last) => after = Some(last.object),
                None => break,
            }
        }
    }
    volume.scrubs.update(serial, |job| {
        (job.counted, job.objects_total, job.bytes_total) = (true, objects, bytes);
    });
    Ok(())
}

/// Sends one SCRUB request to an iod, records and logs the findings, and then sleeps as long as the rate limit
/// requires.
async fn step(volume: &Volume, serial: u64, iod: u16, job: &Job, due: &mut Instant) -> Result<(), Status> {
    let link: Arc<Link> = volume.iods.link(iod)?;
    let cap = link.capability(STORE_OBJECT, Generation::default(), Rights::ADMIN);
    let budget = match job.rate {
        0 => STEP,
        rate => (rate / 4).clamp(STEP_MIN, STEP.into()) as u32,
    };
    let args = native::ScrubArgs { cap, from: job.cursor, budget };
    let mut reply: native::ScrubReply = link.call(Procedure::Scrub, &args).await?;
    // Ignore findings about deleted files. Their objects wait for deletion, so the damage loses no data.
    reply.findings.retain(|finding| volume.namespace.info(finding.object.file).err() != Some(Status::Stale));
    volume.scrubs.update(serial, |job| job.take(&reply));
    for (index, finding) in reply.findings.iter().enumerate() {
        let file = match job.findings.len() + index {
            ..LOGGED_MAX => paths::text(&volume.namespace, finding.object.file).await,
            _ => format!("inode {}", finding.object.file),
        };
        let what = match finding.damage {
            Damage::Object => "a whole object is damaged",
            Damage::Checksum => "bytes do not match their checksum",
            Damage::Unreadable => "bytes cannot be read",
        };
        let range = ByteRange { offset: finding.offset, len: finding.len };
        let ranges = ranges(volume, iod, finding.object, range);
        heal(volume, iod, finding.object, range);
        tracing::error!(file, iod = %link.hello.iod, first = ?ranges.first(), ranges = ranges.len(), "scrub: {what}");
    }
    if job.rate > 0 {
        let span = Duration::from_secs_f64(reply.bytes as f64 / job.rate as f64);
        *due = (*due).max(Instant::now()) + span;
        tokio::time::sleep_until(*due).await;
    }
    Ok(())
}
