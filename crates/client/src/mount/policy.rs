//! The policy of a mount: reading and changing settings, and the automatic write threshold, which depends on measured
//! service times.

use super::{Inner, Mount, Node};
use crate::effective_policy::{OpenSettings, parse_settings};
use crate::{Error, Result};
use layout::policy::{Effective, Origin, Policy, Settings};
use layout::threshold::{Auto, Path, Rule, ThresholdChoice};
use nfs::client::fattr;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use types::FileKind;

/// Measured service times of writes, and the writes to the mgr that are in flight.
#[derive(Default)]
pub(super) struct Timing {
    auto: Auto,
    /// When the client sent each write that is in flight to the mgr. The key is the sequence number of the write.
    sent: BTreeMap<u64, Instant>,
    next: u64,
    /// Moving average of the service time of a LAYOUTCOMMIT after direct writes, in nanoseconds.
    report: u64,
}

/// A write to the mgr whose service time the client measures.
pub(crate) struct Timed<'a> {
    mount: &'a Inner,
    number: Option<u64>,
    begun: Instant,
}

impl Timed<'_> {
    /// Records the service time of a write of `len` bytes to the mgr. `together` is the number of requests that the
    /// client sent at the same time as this write.
    pub(crate) fn done(self, len: u64, together: usize) {
        self.mount.learn_service((Path::Mgr, len, together), self.begun, false);
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.mount.timing().sent.remove(&number);
        }
    }
}

impl Mount {
    /// Returns the effective policy for files without a directory policy.
    pub fn policy(&self) -> Effective {
        let effective_policy = &self.inner.effective_policy;
        effective_policy.effective(&effective_policy.guess(None, Settings::default()), Settings::default())
    }

    /// Asks the mgr for the type and the policy of a file or directory. For a file, returns the policy that a new open
    /// through directory `dir` would have. Existing opens of the file may have a different policy.
    pub async fn policy_of(&self, node: &Node, dir: Option<&Node>) -> Result<(FileKind, Effective)> {
        let mut compound = self.compound("asking for the policy");
        compound.putfh(&node.handle).getattr_of(fattr::OPENING);
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[wire::nfs4::OP_PUTFH])?;
        let (attrs, told) = results.attrs_and_policy()?;
        let told = told.unwrap_or_default();
        if attrs.kind == FileKind::Directory {
            let (server, directory) = parse_settings(&told, Origin::Directory);
            let settings = OpenSettings { server, directory, open: Settings::default() };
            return Ok((attrs.kind, self.inner.effective_policy.effective(&settings, Settings::default())));
        }
        let (server, own) = parse_settings(&told, Origin::File);
        let directory = match dir {
            Some(dir) => self.settings_of(dir).await?,
            None => Settings::default(),
        };
        let settings = OpenSettings { server, directory, open: Settings::default() };
        Ok((attrs.kind, self.inner.effective_policy.effective(&settings, own)))
    }

    /// Returns the policy settings in the extended attributes of a directory.
    async fn settings_of(&self, dir: &Node) -> Result<Settings> {
        let mut compound = self.compound("asking for the policy of a directory");
        compound.putfh(&dir.handle).getattr_of(fattr::POLICY);
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[wire::nfs4::OP_PUTFH])?;
        let told = results.values()?.weir_policy.unwrap_or_default();
        Ok(parse_settings(&told, Origin::Directory).1)
    }

    /// Returns the policy settings from the current mount options.
    pub fn settings(&self) -> Settings {
        self.inner.effective_policy.mount()
    }

    /// Sets or removes one policy setting as a mount option, which overrides the settings of the server and of
    /// directories. The change applies from the next read or write of every file, including open files. Earlier writes
    /// keep their path and their order.
    ///
    /// # Errors
    /// The setting does not exist, does not allow this value, or cannot be set as a mount option.
    pub fn set_policy(&self, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let usage = |e: layout::PolicyError| Error::usage(e.to_string());
        match value {
            Some(value) => {
                let mut checked = Settings::default();
                checked.set(Origin::Mount, name, value).map_err(usage)?;
                self.inner.effective_policy.set_mount(|settings| settings.lay(&checked));
            }
            None => {
                let part = layout::Part::named(name).map_err(usage)?;
                self.inner.effective_policy.set_mount(|settings| settings.unset(part));
            }
        }
        Ok(())
    }

    /// Returns the current write threshold for files without a directory policy, in bytes.
    pub fn write_threshold(&self) -> u64 {
        self.inner.present_threshold(self.policy().policy.write_threshold)
    }
}

impl Inner {
    fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the write threshold that `rule` (fixed or automatic) gives for gathered ranges, of which the longest has
    /// `longest` bytes. The automatic rule may also choose a path (direct or mgr) whose service time the client
    /// measures with this write.
    pub(crate) fn threshold(&self, rule: Rule, longest: u64) -> ThresholdChoice {
        let Rule::Auto = rule else { return self.present_threshold(rule).into() };
        self.session.load().want();
        let mut timing = self.timing();
        timing.hear(self.session.load().news());
        let waiting = timing.sent.values().next().map_or(Duration::ZERO, Instant::elapsed);
        timing.auto.ask(longest, waiting)
    }

    /// Returns the write threshold in bytes that `rule` (fixed or automatic) gives now. Unlike [`Self::threshold`],
    /// this function never chooses a path only to measure its service time.
    pub(crate) fn present_threshold(&self, rule: Rule) -> u64 {
        match rule {
            Rule::Fixed(t) => t,
            Rule::Auto => {
                let mut timing = self.timing();
                timing.hear(self.session.load().news());
                timing.auto.threshold()
            }
        }
    }

    /// Starts to measure the service time of a write that the client is about to send to the mgr.
    pub(crate) fn time_mgr(&self) -> Timed<'_> {
        let begun = Instant::now();
        let number = self.session.load().is_wanted().then(|| {
            let mut timing = self.timing();
            timing.next += 1;
            let number = timing.next;
            timing.sent.insert(number, begun);
            number
        });
        Timed { mount: self, number, begun }
    }

    /// Records the service time of a write that began at `begun`. `write` contains the path of the write, its length,
    /// and the number of requests that the client sent together. If `unreported`, the written bytes are durable, but
    /// the client must still send a LAYOUTCOMMIT.
    pub(crate) fn learn_service(&self, write: (Path, u64, usize), begun: Instant, unreported: bool) {
        if self.session.load().is_wanted() {
            let mut timing = self.timing();
            timing.hear(self.session.load().news());
            timing.learn(write, begun.elapsed(), unreported);
        }
    }

    /// Records the service time of a LAYOUTCOMMIT that began at `begun`.
    pub(crate) fn learn_report(&self, begun: Instant) {
        if self.session.load().is_wanted() {
            self.timing().reported(begun.elapsed());
        }
    }
}

impl Timing {
    /// Records the service time of a write. A durable write on the direct path also needs a LAYOUTCOMMIT, and a write
    /// on the mgr path needs none. So add the average time of a LAYOUTCOMMIT to the time of such a direct write.
    fn learn(&mut self, (way, len, together): (Path, u64, usize), took: Duration, unreported: bool) {
        let report = if unreported { Duration::from_nanos(self.report) } else { Duration::ZERO };
        self.auto.learn(way, len, took.saturating_add(report), together);
    }

    fn reported(&mut self, took: Duration) {
        let sample = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.report = if self.report == 0 { sample } else { self.report - self.report / 8 + sample / 8 };
    }

    /// Records the queue delay `news` of the mgr, if the mgr has reported a new one.
    fn hear(&mut self, news: Option<Duration>) {
        if let Some(delay) = news {
            self.auto.queued(delay);
        }
    }
}

/// Returns the effective policy of a file if neither the file nor its directory has policy settings.
pub(crate) fn usual(mount: &Inner) -> Policy {
    let effective_policy = &mount.effective_policy;
    effective_policy.effective(&effective_policy.guess(None, Settings::default()), Settings::default()).policy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the automatic write threshold after 64 durable writes on each path. A write takes 7 ms on the mgr path.
    /// On the direct path, a write takes 4 ms, and the LAYOUTCOMMIT after it takes `report`.
    fn after(report: Duration) -> u64 {
        let mut timing = Timing::default();
        for _ in 0..64 {
            timing.reported(report);
            timing.learn((Path::Direct, 20_000, 1), Duration::from_millis(4), true);
            timing.learn((Path::Mgr, 20_000, 1), Duration::from_millis(7), false);
        }
        timing.auto.threshold()
    }

    #[test]
    fn the_time_of_a_direct_write_includes_its_report() {
        assert!(after(Duration::from_micros(10)) <= 20_000);
        assert!(after(Duration::from_millis(2)) > 20_000);
    }
}
