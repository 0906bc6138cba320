//! The stop flag, which SIGINT and SIGTERM set. Threads can check it and tasks can await it. Also handles SIGHUP.

use crate::failure::{Exit, Failure};
use crate::logging::DAEMON_EVENTS;
use std::io::IsTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// A flag that is set once the user has asked the process to stop. Clones share the flag.
#[derive(Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Installs the signal handlers. The first SIGINT or SIGTERM sets the stop flag. The second of these signals ends
    /// the process with exit code 130.
    ///
    /// The caller must be inside a tokio runtime, because a task listens for the signals.
    pub fn listen() -> Result<Stop, Failure> {
        Stop::listen_as(None)
    }

    /// Installs the signal handlers of a daemon like [`Stop::listen`], and logs the signals. SIGHUP ends a daemon only
    /// if it has a terminal, because the signal then means that the terminal was closed.
    pub fn listen_as_daemon(name: &'static str) -> Result<Stop, Failure> {
        let stop = Stop::listen_as(Some(name))?;
        if !std::io::stdin().is_terminal() && !std::io::stderr().is_terminal() {
            let mut hangup = signal(SignalKind::hangup())?;
            tokio::spawn(async move {
                while hangup.recv().await.is_some() {
                    tracing::info!(target: DAEMON_EVENTS, daemon = name, "SIGHUP: nothing is reloaded; restart the daemon to apply a changed configuration");
                }
            });
        }
        Ok(stop)
    }

    fn listen_as(daemon: Option<&'static str>) -> Result<Stop, Failure> {
        let (set, get) = watch::channel(false);
        let mut int = signal(SignalKind::interrupt())?;
        let mut term = signal(SignalKind::terminate())?;
        tokio::spawn(async move {
            loop {
                let signal = tokio::select! {
                    _ = int.recv() => "SIGINT",
                    _ = term.recv() => "SIGTERM",
                };
                if let Some(daemon) = daemon {
                    tracing::info!(target: DAEMON_EVENTS, daemon, signal, "stopping");
                }
                if set.send_replace(true) {
                    std::process::exit(Exit::Interrupted as i32);
                }
            }
        });
        Ok(Stop(get))
    }

    /// Returns whether the flag is set.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns an error if the flag is set.
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_set() { Err(Failure::interrupted()) } else { Ok(()) }
    }

    /// Waits until the user has asked the process to stop.
    pub async fn wait(&self) {
        let mut get = self.0.clone();
        if get.wait_for(|set| *set).await.is_err() {
            // The tokio runtime has dropped the task that sets the stop flag, so the flag stays unset. Never return,
            // because a return would mean that the user has asked the process to stop.
            std::future::pending::<()>().await;
        }
    }
}
