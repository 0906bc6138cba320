//! The policy of a mount and of its files: what counts, how it is changed, and what follows from it for the way of bytes.

use super::{Inner, Mount, Node};
use crate::governor::{Words, heard};
use crate::{Error, Result};
use layout::policy::{Effective, Origin, Policy, Settings};
use layout::threshold::{Auto, Path, Rule, Verdict};
use nfs::client::fattr;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use types::FileKind;

/// Service times, and the requests that are on their way to the mgr.
#[derive(Default)]
pub(super) struct Timing {
    auto: Auto,
    /// When those left that were not answered yet, in that order.
    sent: BTreeMap<u64, Instant>,
    next: u64,
    /// Moving average of what it takes to report to the mgr what went straight, in nanoseconds.
    report: u64,
}

/// A request to the mgr whose answer is waited for.
pub(crate) struct Timed<'a> {
    mount: &'a Inner,
    number: Option<u64>,
    begun: Instant,
}

impl Timed<'_> {
    /// It wrote so many bytes and is answered; so many were sent together.
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
    /// The policy that counts for files in no particular directory.
    pub fn policy(&self) -> Effective {
        let governor = &self.inner.governor;
        governor.effective(&governor.guess(None, Settings::default()), Settings::default())
    }

    /// What it is, and the policy that counts for a file or directory, asked for now; of a file, one that is opened in `dir` if that is given. Files
    /// that are open may have been told something else.
    pub async fn policy_of(&self, node: &Node, dir: Option<&Node>) -> Result<(FileKind, Effective)> {
        let mut compound = self.compound("asking for the policy");
        compound.putfh(&node.handle).getattr_of(fattr::OPENING);
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[wire::nfs4::OP_PUTFH])?;
        let (attrs, told) = results.attrs_and_policy()?;
        let told = told.unwrap_or_default();
        if attrs.kind == FileKind::Directory {
            let (server, directory) = heard(&told, Origin::Directory);
            let words = Words { server, directory, open: Settings::default() };
            return Ok((attrs.kind, self.inner.governor.effective(&words, Settings::default())));
        }
        let (server, own) = heard(&told, Origin::File);
        let directory = match dir {
            Some(dir) => self.settings_of(dir).await?,
            None => Settings::default(),
        };
        let words = Words { server, directory, open: Settings::default() };
        Ok((attrs.kind, self.inner.governor.effective(&words, own)))
    }

    /// What the extended attributes of a directory set.
    async fn settings_of(&self, dir: &Node) -> Result<Settings> {
        let mut compound = self.compound("asking for the policy of a directory");
        compound.putfh(&dir.handle).getattr_of(fattr::POLICY);
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[wire::nfs4::OP_PUTFH])?;
        let told = results.values()?.weir_policy.unwrap_or_default();
        Ok(heard(&told, Origin::Directory).1)
    }

    /// What the options of this mount set by now.
    pub fn settings(&self) -> Settings {
        self.inner.governor.mount()
    }

    /// Sets a part of the policy as an option of this mount, or no longer, over what server and directories say. It counts for the
    /// next read or write of every file, open ones too; what has been written before is not affected, and stays in order.
    ///
    /// # Errors
    /// There is no such part, or it has no such value, or is not one of mounts.
    pub fn set_policy(&self, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let usage = |e: layout::PolicyError| Error::usage(e.to_string());
        match value {
            Some(value) => {
                let mut checked = Settings::default();
                checked.set(Origin::Mount, name, value).map_err(usage)?;
                self.inner.governor.set_mount(|settings| settings.lay(&checked));
            }
            None => {
                let part = layout::Part::named(name).map_err(usage)?;
                self.inner.governor.set_mount(|settings| settings.unset(part));
            }
        }
        Ok(())
    }

    /// The write threshold in force now for files in no particular directory, in bytes.
    pub fn write_threshold(&self) -> u64 {
        self.inner.present_threshold(self.policy().policy.write_threshold)
    }
}

impl Inner {
    fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The write threshold by a rule for bytes of which the longest run is this long.
    pub(crate) fn threshold(&self, rule: Rule, longest: u64) -> Verdict {
        let Rule::Auto = rule else { return self.present_threshold(rule).into() };
        self.session.load().want();
        let mut timing = self.timing();
        timing.hear(self.session.load().news());
        let waiting = timing.sent.values().next().map_or(Duration::ZERO, Instant::elapsed);
        timing.auto.ask(longest, waiting)
    }

    /// The write threshold as it is, for who only wants to know.
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

    /// A write to the mgr is about to leave.
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

    /// A write that began then is answered: the way it went, its bytes, and how many were sent together. With `unreported` it is durable but for
    /// the report to the mgr, which somebody waits for next.
    pub(crate) fn learn_service(&self, write: (Path, u64, usize), begun: Instant, unreported: bool) {
        if self.session.load().is_wanted() {
            let mut timing = self.timing();
            timing.hear(self.session.load().news());
            timing.learn(write, begun.elapsed(), unreported);
        }
    }

    /// A report to the mgr of what went straight, which began then, is answered.
    pub(crate) fn learn_report(&self, begun: Instant) {
        if self.session.load().is_wanted() {
            self.timing().reported(begun.elapsed());
        }
    }
}

impl Timing {
    /// Through the mgr, what is durable is reported as well. So on the other way the report belongs to what is compared.
    fn learn(&mut self, (way, len, together): (Path, u64, usize), took: Duration, unreported: bool) {
        let report = if unreported { Duration::from_nanos(self.report) } else { Duration::ZERO };
        self.auto.learn(way, len, took.saturating_add(report), together);
    }

    fn reported(&mut self, took: Duration) {
        let sample = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.report = if self.report == 0 { sample } else { self.report - self.report / 8 + sample / 8 };
    }

    /// The mgr said something of its queue, or nothing new.
    fn hear(&mut self, news: Option<Duration>) {
        if let Some(delay) = news {
            self.auto.queued(delay);
        }
    }
}

/// The policy of files of which nobody has said anything.
pub(crate) fn usual(mount: &Inner) -> Policy {
    let governor = &mount.governor;
    governor.effective(&governor.guess(None, Settings::default()), Settings::default()).policy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes that are durable at once take 7 ms through the mgr, and straight 4 ms and a report.
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
    fn what_is_reported_counts_with_its_report() {
        assert!(after(Duration::from_micros(10)) <= 20_000);
        assert!(after(Duration::from_millis(2)) > 20_000);
    }
}
