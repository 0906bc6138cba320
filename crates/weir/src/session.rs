//! From the command line to a mounted file system: shared options, the runtime, one mount per server.

use crate::failure::{Exit, Failure, Outcome};
use crate::locator;
use client::{Mount, Options, Settings, Target, options};
use std::ffi::OsString;
use std::time::Duration;
use types::{FileKind, Status};

/// How long a command that is done waits for its session to end before it leaves that to the lease.
const DISCONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Options of every command that talks to a cluster.
#[derive(clap::Args, Clone)]
pub struct Connect {
    /// The default file system for names without a host, weir://host[:port][/directory] [env: WEIR_URL]
    // The environment is asked apart: usage lines would show the option as one that must be given.
    #[arg(long, value_name = "URL")]
    url: Option<OsString>,
    /// Send all file data through the mgr, not directly to and from the iods
    #[arg(long)]
    no_direct: bool,
    /// Do not checksum file data on the network
    #[arg(long)]
    no_checksums: bool,
    /// How long to try to reach a server at start
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    connect_timeout: u64,
    /// How long a request waits for an unreachable server
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    retry_timeout: u64,
    /// Let requests wait for an unreachable server for ever
    #[arg(long, conflicts_with = "retry_timeout")]
    hard: bool,
}

impl Connect {
    /// The target that names without a host are relative to.
    pub fn base(&self) -> Result<Option<Target>, Failure> {
        let url = self.url.clone().or_else(|| std::env::var_os("WEIR_URL"));
        match &url {
            Some(url) if !url.is_empty() => locator::url(url).map(Some).map_err(|e| e.about("WEIR_URL (or --url)")),
            _ => Ok(None),
        }
    }

    /// The targets that `names` mean, each in a Weir file system.
    pub fn targets(&self, names: &[OsString]) -> Result<Vec<Target>, Failure> {
        let base = self.base()?;
        names.iter().map(|name| locator::parse_remote(name, base.as_ref())).collect()
    }

    /// The target that `name` means, in a Weir file system.
    pub fn target(&self, name: &OsString) -> Result<Target, Failure> {
        locator::parse_remote(name, self.base()?.as_ref())
    }

    /// The target of `name`, or the whole of `WEIR_URL` when there is none.
    pub fn target_or_base(&self, name: Option<&OsString>) -> Result<Target, Failure> {
        let empty = OsString::new();
        self.target(name.unwrap_or(&empty))
    }

    /// How long to try to reach a server.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.connect_timeout)
    }

    /// How long a request waits for a server that went away.
    pub fn retry_timeout(&self) -> Duration {
        if self.hard { options::FOR_EVER } else { Duration::from_secs(self.retry_timeout) }
    }

    /// Let requests wait for ever.
    pub fn wait_for_ever(&mut self) {
        self.hard = true;
    }

    /// Let requests wait for so long.
    pub fn wait_for(&mut self, time: Duration) {
        (self.hard, self.retry_timeout) = (false, time.as_secs());
    }

    /// Try to reach a server for so long.
    pub fn try_for(&mut self, time: Duration) {
        self.connect_timeout = time.as_secs();
    }

    /// Move data without checksums.
    pub fn skip_checksums(&mut self) {
        self.no_checksums = true;
    }

    /// Move data through the mgr alone.
    pub fn go_through_mgr(&mut self) {
        self.no_direct = true;
    }

    /// How mounts behave.
    pub fn options(&self) -> Result<Options, Failure> {
        Ok(Options {
            environment: environment()?,
            direct: !self.no_direct,
            checksums: !self.no_checksums,
            connect_timeout: self.timeout(),
            retry_timeout: self.retry_timeout(),
            ..Options::default()
        })
    }
}

/// What the environment says about the use of files.
pub fn environment() -> Result<Settings, Failure> {
    options::environment().map_err(|e| Failure::usage(e).about(options::POLICY_VARIABLE))
}

/// The mounts of one command, one per server.
pub struct Mounts {
    options: Options,
    made: Vec<(String, Mount)>,
}

impl Mounts {
    /// None yet.
    pub fn new(connect: &Connect) -> Result<Self, Failure> {
        Ok(Mounts { options: connect.options()?, made: Vec::new() })
    }

    /// The mount of the file system that `target` is on.
    pub async fn get(&mut self, target: &Target) -> Result<Mount, Failure> {
        let address = target.address();
        if let Some((_, mount)) = self.made.iter().find(|(made, _)| *made == address) {
            return Ok(mount.clone());
        }
        let mount = Mount::connect(target, self.options.clone()).await?;
        self.made.push((address, mount.clone()));
        Ok(mount)
    }

    /// Ends all sessions, so that the servers need not wait for their leases to end.
    pub async fn disconnect(self) {
        for (address, mount) in self.made {
            match tokio::time::timeout(DISCONNECT_PATIENCE, mount.disconnect()).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::debug!(address, "the session did not end cleanly: {e}"),
                Err(_) => tracing::debug!(address, "the server did not end the session in time"),
            }
        }
    }
}

/// A tokio runtime for one command.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(fuse::thread_begins)
        .build()
        .map_err(|e| Failure::from(e).about("cannot start threads"))
}

/// Runs an asynchronous command body and ends its sessions afterwards.
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

/// Does `each` for every target, says what failed, and goes on; the exit code tells whether all went well.
///
/// A cluster that cannot be reached ends it at once: the next target would only wait as long again.
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

/// Whether `target` is a directory; what is not there is none.
pub async fn is_directory(mount: &Mount, target: &Target) -> Result<bool, Failure> {
    match mount.resolve(target.path(), true).await {
        Ok((_, attrs)) => Ok(attrs.kind == FileKind::Directory),
        Err(e) if e.is(Status::NoEnt) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
