//! One run of the online check, from its start to its end.

use super::finding::Kind;
use crate::fs::NfsServer;
use crate::volume::Volume;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use types::{FileId, IodId, Status};
use wire::admin::{Finding, Mended};

/// A message of a running check.
#[derive(Debug)]
pub(crate) enum Step {
    /// The check found a problem.
    Found(Box<Finding>),
    /// The progress of the check.
    At {
        /// What the check looks at.
        phase: &'static str,
        /// How many items of this phase it has seen.
        done: u64,
        /// How many items there are, 0 if unknown.
        total: u64,
    },
    /// The end of the check.
    End {
        /// Why the check stopped early.
        broken_off: Option<String>,
        /// The final counts.
        counts: Vec<(&'static str, u64)>,
    },
}

/// Why a check stops early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The receiver of its messages is gone.
    Alone,
    /// The check cannot continue.
    Failed(Status),
}

impl From<Status> for Stop {
    fn from(status: Status) -> Self {
        Stop::Failed(status)
    }
}

pub(crate) type Checked<T = ()> = Result<T, Stop>;

/// A running check.
pub(crate) struct Check {
    pub(crate) server: Arc<NfsServer>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) repair: bool,
    tell: mpsc::Sender<Step>,
    /// Counts of records, files and objects seen, and of files left out with the reason.
    pub(crate) counts: Counts,
    phase: (&'static str, u64, u64),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) records: u64,
    pub(crate) files: u64,
    pub(crate) objects: u64,
    /// Files whose sizes are not settled, because a client writes them or wrote them before a crash.
    pub(crate) unsettled: u64,
    /// Files with an iod that should hold bytes and could not be asked.
    pub(crate) unasked: u64,
    /// Numbers of iods that could not be reached, or were lost during the check.
    pub(crate) unreached: BTreeSet<u16>,
}

/// Runs all checks and sends their messages to `tell`.
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
    // The receiver may be gone.
    let _ = check.tell.send(Step::End { broken_off, counts }).await;
}

impl Check {
    async fn all(&mut self) -> Checked {
        self.names().await?;
        self.registry().await?;
        self.cuts().await?;
        self.files().await?;
        self.scrubbed().await?;
        self.objects().await
    }

    /// Reports a problem.
    pub(crate) async fn found(&mut self, finding: Finding) -> Checked {
        self.tell.send(Step::Found(Box::new(finding))).await.map_err(|_| Stop::Alone)
    }

    /// Reports a problem with the outcome of its repair.
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

    /// Begins a phase of about `total` items.
    pub(crate) async fn begin(&mut self, phase: &'static str, total: u64) -> Checked {
        self.phase = (phase, 0, total);
        self.looked(0).await
    }

    /// Reports that `more` further items were checked.
    pub(crate) async fn looked(&mut self, more: u64) -> Checked {
        self.phase.1 += more;
        let (phase, done, total) = self.phase;
        self.tell.send(Step::At { phase, done, total }).await.map_err(|_| Stop::Alone)
    }

    /// Reports an iod that cannot be asked, once per iod.
    pub(crate) async fn unreached(&mut self, number: u16, id: IodId) -> Checked {
        if !self.counts.unreached.insert(number) {
            return Ok(());
        }
        self.found(Kind::IodUnreachable.found(None, Some(id), "the iod cannot be asked".to_owned())).await
    }

    /// Returns whether the size of a file is being worked on, so that its objects may disagree with it.
    pub(crate) fn unsettled(&self, file: FileId) -> Result<bool, Status> {
        Ok(crate::background::finish_intents::in_use(&self.server, file)
            || !self.volume.namespace.intents_of(file)?.is_empty())
    }
}
