//! Session of a command with a cluster: the common options of commands, the tokio runtime, and one mount for each
//! server.

use crate::deprecated;
use crate::failure::{Exit, Failure, Outcome};
use crate::locator;
use client::{Mount, Options, Settings, Target, options};
use std::ffi::OsString;
use std::time::Duration;
use types::{FileKind, Status};

/// How long a command waits, before it exits, for the server's reply to the end of its session. Without this reply, the
/// session ends with its lease.
const DISCONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Options of all commands that communicate with a cluster.
#[derive(clap::Args, Clone)]
pub struct Connect {
    /// The default file system for names without a host, `weir://host[:port][/directory]` [env: WEIR_URL]
    // Read the environment variable in the code, because with clap's `env` the usage lines show this option as
    // required.
    #[arg(long, value_name = "URL")]
    url: Option<OsString>,
    /// Send all file data on the mgr path, not on the direct path to the iods
    #[arg(long)]
    mgr_path: bool,
    /// Send file data without checksums on the network
    #[arg(long)]
    no_checksums: bool,
    /// How long to try to connect to a server at start
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    connect_timeout: u64,
    /// How long a request waits for an unreachable server
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    retry_timeout: u64,
    /// Let requests wait for an unreachable server without a time limit
    #[arg(long, conflicts_with = "retry_timeout")]
    hard: bool,
}

impl Connect {
    /// Returns the base for names without a host: the value of `--url`, or of `WEIR_URL`.
    pub fn base(&self) -> Result<Option<Target>, Failure> {
        let url = self.url.clone().or_else(|| std::env::var_os("WEIR_URL"));
        match &url {
            Some(url) if !url.is_empty() => locator::url(url).map(Some).map_err(|e| e.about("WEIR_URL (or --url)")),
            _ => Ok(None),
        }
    }

    /// Parses file names into targets (host, port and path). Fails for the name of a local file.
    pub fn targets(&self, names: &[OsString]) -> Result<Vec<Target>, Failure> {
        let base = self.base()?;
        names.iter().map(|name| locator::parse_remote(name, base.as_ref())).collect()
    }

    /// Parses a file name into a target (host, port and path). Fails for the name of a local file.
    pub fn target(&self, name: &OsString) -> Result<Target, Failure> {
        locator::parse_remote(name, self.base()?.as_ref())
    }

    /// Parses a file name into a target. Without a name, returns the target of `--url` or `WEIR_URL`.
    pub fn target_or_base(&self, name: Option<&OsString>) -> Result<Target, Failure> {
        let empty = OsString::new();
        self.target(name.unwrap_or(&empty))
    }

    /// Returns how long a connection attempt may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.connect_timeout)
    }

    /// Returns how long a request waits for an unreachable server.
    pub fn retry_timeout(&self) -> Duration {
        if self.hard { options::FOR_EVER } else { Duration::from_secs(self.retry_timeout) }
    }

    /// Lets requests wait for an unreachable server without a time limit.
    pub fn wait_for_ever(&mut self) {
        self.hard = true;
    }

    /// Lets requests wait at most `time` for an unreachable server.
    pub fn wait_for(&mut self, time: Duration) {
        (self.hard, self.retry_timeout) = (false, time.as_secs());
    }

    /// Limits connection attempts to `time`.
    pub fn try_for(&mut self, time: Duration) {
        self.connect_timeout = time.as_secs();
    }

    /// Disables the checksums of file data on the network.
    pub fn skip_checksums(&mut self) {
        self.no_checksums = true;
    }

    /// Sends all file data on the mgr path.
    pub fn take_mgr_path(&mut self) {
        self.mgr_path = true;
    }

    /// Returns the client options for the mounts of this command.
    pub fn options(&self) -> Result<Options, Failure> {
        Ok(Options {
            environment: environment()?,
            direct: !self.mgr_path,
            checksums: !self.no_checksums,
            connect_timeout: self.timeout(),
            retry_timeout: self.retry_timeout(),
            ..Options::default()
        })
    }
}

/// Returns the policy settings of the environment variable `WEIR_POLICY`.
pub fn environment() -> Result<Settings, Failure> {
    deprecated::warn_of_policy(&std::env::var(options::POLICY_VARIABLE).unwrap_or_default());
    options::environment().map_err(|e| Failure::usage(e).about(options::POLICY_VARIABLE))
}

/// The mounts of one command, one for each server.
pub struct Mounts {
    options: Options,
    made: Vec<(String, Mount)>,
}

impl Mounts {
    /// Returns an empty set of mounts, which will use the options `connect`.
    pub fn new(connect: &Connect) -> Result<Self, Failure> {
        Ok(Mounts { options: connect.options()?, made: Vec::new() })
    }

    /// Returns the mount of the file system of `target`. The first call for a file system connects to its mgr.
    pub async fn get(&mut self, target: &Target) -> Result<Mount, Failure> {
        let address = target.address();
        if let Some((_, mount)) = self.made.iter().find(|(made, _)| *made == address) {
            return Ok(mount.clone());
        }
        let mount = Mount::connect(target, self.options.clone()).await?;
        self.made.push((address, mount.clone()));
        Ok(mount)
    }

    /// Ends the sessions of all mounts. Otherwise, the mgr keeps the state of this client until its lease expires.
    pub async fn disconnect(self) {
        for (address, mount) in self.made {
            match tokio::time::timeout(DISCONNECT_PATIENCE, mount.disconnect()).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::debug!(address, error = %e, "cannot end a session"),
                Err(_) => tracing::debug!(address, "the server did not answer in time to the end of a session"),
            }
        }
    }
}

/// Makes the tokio runtime of a command.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::from(e).about("cannot start threads"))
}

/// Runs `body`, the asynchronous part of a command. Then ends the sessions of all mounts that `body` has used.
pub fn run(connect: &Connect, body: impl AsyncFnOnce(&mut Mounts) -> Outcome) -> Outcome {
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let mut mounts = Mounts::new(connect)?;
        let outcome = body(&mut mounts).await;
        mounts.disconnect().await;
        outcome
    });
    runtime.shutdown_background();
    outcome
}

/// Runs `each` for every target. After a failure, prints it and continues with the next target. The exit code reports
/// whether `each` succeeded for all targets.
///
/// If the cluster is unreachable, this function returns at once, because each further target would wait for the same
/// timeout.
pub async fn for_each<T: std::fmt::Display>(
    targets: &[T],
    mut each: impl AsyncFnMut(&T) -> Result<(), Failure>,
) -> Outcome {
    let mut code = Exit::Done;
    for target in targets {
        match each(target).await {
            Ok(()) => tracing::info!(name = %target, "done"),
            Err(failure) if failure.code == Exit::Unreachable => return Err(failure),
            Err(failure) => {
                eprintln!("{failure}");
                code = Exit::Failed;
            }
        }
    }
    Ok(code)
}

/// Returns whether `target` is a directory. Returns `false` if it does not exist.
pub async fn is_directory(mount: &Mount, target: &Target) -> Result<bool, Failure> {
    match mount.resolve(target.path(), true).await {
        Ok((_, attrs)) => Ok(attrs.kind == FileKind::Directory),
        Err(e) if e.is(Status::NoEnt) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
