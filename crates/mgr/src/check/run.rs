//! One run of the online check, from its start to its end.

use super::finding::Kind;
use crate::fs::NfsServer;
use crate::volume::Volume;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use types::{FileId, IodId, Status};
use wire::admin::{Finding, Mended};

/// A message that a running check sends to the task that executes CHECK requests.
#[derive(Debug)]
pub(crate) enum Step {
    /// A problem that the check has found.
    Found(Box<Finding>),
    /// The progress of the check in its current phase.
    At {
        /// The kind of items that the check examines in this phase, such as files.
        phase: &'static str,
        /// Number of items that the check has examined in this phase.
        done: u64,
        /// Total number of items in this phase; 0 if the check does not know the total.
        total: u64,
    },
    /// The end of the check. The check sends no message after this one.
    End {
        /// Why the check stopped early; `None` if the check examined everything.
        broken_off: Option<String>,
        /// Names and values of the check's counters at the end of the check.
        counts: Vec<(&'static str, u64)>,
    },
}

/// Why a check stops before it has examined everything.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The receiver of the check's messages no longer exists, so no client waits for findings.
    Alone,
    /// An operation of the check failed with this status.
    Failed(Status),
}

impl From<Status> for Stop {
    fn from(status: Status) -> Self {
        Stop::Failed(status)
    }
}

pub(crate) type Checked<T = ()> = Result<T, Stop>;

/// The state of a running check: what it has examined, and the channel for its messages.
pub(crate) struct Check {
    pub(crate) server: Arc<NfsServer>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) repair: bool,
    tell: mpsc::Sender<Step>,
    /// Counts of the records, files and objects that the check has examined, and of those that it could not examine.
    pub(crate) counts: Counts,
    phase: (&'static str, u64, u64),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) records: u64,
    pub(crate) files: u64,
    pub(crate) objects: u64,
    /// Files whose size is not final, because a client may write the file or wrote it before a crash.
    pub(crate) unsettled: u64,
    /// Files for which the check could not reach an iod that must hold bytes of the file.
    pub(crate) unasked: u64,
    /// Numbers of the iods that the check could not reach or to which it lost the connection.
    pub(crate) unreached: BTreeSet<u16>,
}

/// Runs all phases of the check and sends their messages to the channel `tell`.
pub(crate) async fn run(server: Arc<NfsServer>, repair: bool, tell: mpsc::Sender<Step>) {
    let volume = server.fs().0.clone();
    let mut check = Check { server, volume, repair, tell, counts: Counts::default(), phase: ("", 0, 0) };
    let broken_off = match check.all().await {
        Ok(()) => None,
        Err(Stop::Alone) => return,
        Err(Stop::Failed(e)) => Some(format!("while looking at {}: {e}", check.phase.0)),
    };
    let counts = &check.counts;
    let counts = vec![
        ("records", counts.records),
        ("files", counts.files),
        ("objects", counts.objects),
        ("files_unsettled", counts.unsettled),
        ("files_unasked", counts.unasked),
        ("iods_unreached", counts.unreached.len() as u64),
    ];
    // Sending fails if the client no longer waits for the check. The check has ended, so ignore the error.
    let _ = check.tell.send(Step::End { broken_off, counts }).await;
}

impl Check {
    async fn all(&mut self) -> Checked {
        self.names().await?;
        self.registry().await?;
        self.finish_truncations().await?;
        self.files().await?;
        self.scrubbed().await?;
        self.objects().await
    }

    /// Sends a finding about a problem to the client.
    pub(crate) async fn found(&mut self, finding: Finding) -> Checked {
        self.tell.send(Step::Found(Box::new(finding))).await.map_err(|_| Stop::Alone)
    }

    /// Sends a finding about a problem, with the outcome of the repair, to the client.
    pub(crate) async fn mended(&mut self, mut finding: Finding, outcome: Result<bool, Status>) -> Checked {
        finding.mended = match outcome {
            Ok(true) => Mended::Yes,
            Ok(false) => Mended::Failed,
            Err(e) => {
                finding.text += &format!("; repairing it failed: {e}");
                Mended::Failed
            }
        };
        self.found(finding).await
    }

    /// Begins a phase of the check with about `total` items, and sends the progress.
    pub(crate) async fn begin(&mut self, phase: &'static str, total: u64) -> Checked {
        self.phase = (phase, 0, total);
        self.looked(0).await
    }

    /// Adds `more` to the number of examined items, and sends the progress.
    pub(crate) async fn looked(&mut self, more: u64) -> Checked {
        self.phase.1 += more;
        let (phase, done, total) = self.phase;
        self.tell.send(Step::At { phase, done, total }).await.map_err(|_| Stop::Alone)
    }

    /// Sends a finding about an iod that the check cannot reach, once for each iod.
    pub(crate) async fn unreached(&mut self, number: u16, id: IodId) -> Checked {
        if !self.counts.unreached.insert(number) {
            return Ok(());
        }
        self.found(Kind::IodUnreachable.found(None, Some(id), "the iod cannot be asked".to_owned())).await
    }

    /// Returns whether the size of a file is not final. The lengths of its objects may then disagree with this size.
    pub(crate) fn unsettled(&self, file: FileId) -> Result<bool, Status> {
        Ok(crate::background::finish_intents::in_use(&self.server, file)
            || !self.volume.namespace.intents_of(file)?.is_empty())
    }
}
