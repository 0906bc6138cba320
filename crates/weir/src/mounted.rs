//! A FUSE mount that this process serves until the process itself or another one unmounts it.

use crate::commands;
use crate::deprecated;
use crate::failure::{Exit, Failure, Outcome};
use crate::identity::Identity;
use clap::ValueEnum;
use client::{Mount, Node, Options, Origin, Part, Settings};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options that select the behavior of a mount.
#[derive(clap::Args, Clone)]
pub struct MountOptions {
    /// Parts of the policy for this mount. They override what the server and directories set. "weir policy --help" lists
    /// the parts
    #[arg(long = "policy", value_name = "PART=VALUE,...", value_parser = policy)]
    policies: Vec<Settings>,
    /// How to read and write files: page (use the page cache: best for small reads), direct (bypass it: best for large
    /// requests) or unbuffered (send each write before it returns) [default: direct]
    #[arg(long, value_parser = access)]
    access: Option<Settings>,
    /// Send gathered writes shorter than this on the mgr path, and other writes on the direct path to the iods. 0: all
    /// on the direct path; max: all on the mgr path; auto: on the path that was faster recently [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = write_threshold)]
    write_threshold: Option<Settings>,
    /// Send reads shorter than this on the mgr path, and other reads on the direct path to the iods [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = read_threshold)]
    read_threshold: Option<Settings>,
    /// How long the kernel caches attributes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub attr_timeout: f64,
    /// How long the kernel caches names, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub entry_timeout: f64,
    /// How long the kernel caches failed lookups, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub absent_timeout: f64,
    /// Maximum number of unused inodes in the kernel, about 1 KiB each. Beyond it, the mount evicts the oldest inodes
    /// without cached pages (Linux 6.18)
    #[arg(long, value_name = "FILES", default_value_t = fuse::KNOWN_FILES)]
    pub known_files: usize,
    /// Transport of FUSE requests between the kernel and the mount. Small requests are faster over io_uring, which root
    /// enables with "echo Y > /sys/module/fuse/parameters/enable_uring" (Linux 6.14)
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Send writes through the page cache, as local file systems do: small writes are much faster. Applies to files that
    /// no other client has open. fsync and close report errors. Implies access=page unless access is set. Root only
    #[arg(long)]
    pub writeback: bool,
    /// When data become durable. close: closed files, and all changes of names, as with NFS. fsync: as on local file
    /// systems; faster for names and small files, but a power failure of the mgr's machine can lose the last second
    /// [default: close; for "weir up": fsync]
    #[arg(long, value_enum)]
    pub durable: Option<Durable>,
    /// Disable short-circuit reads: by default, mounts by root read cached data from the object files of iods on this
    /// machine
    #[arg(long)]
    pub no_short_circuit: bool,
    /// Disable negative-lookup caching: by default, the mount caches failed lookups in a directory, until the mgr
    /// recalls this permission because another client creates a name there
    #[arg(long)]
    pub no_negative: bool,
    /// Mount read-only
    #[arg(long)]
    pub read_only: bool,
    /// Whether files may be executed, act as devices, and have setuid bits on this machine
    #[arg(skip)]
    pub powers: fuse::FilePrivileges,
    /// Mount over an existing Weir mount. By default this is an error
    #[arg(long)]
    pub over: bool,
    /// Let other users access the mount; mounts by root always do
    #[arg(long)]
    pub allow_other: bool,
}

/// Parses the settings of a policy.
pub fn policy(text: &str) -> Result<Settings, String> {
    deprecated::warn_of_policy(text);
    Settings::parse(Origin::Mount, text).map_err(|e| e.to_string())
}

/// Parses the value of one policy setting.
fn part(part: Part, text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    settings.set(Origin::Mount, part.name().as_bytes(), text.as_bytes()).map_err(|e| e.to_string())?;
    Ok(settings)
}

fn access(text: &str) -> Result<Settings, String> {
    deprecated::warn_of_policy(&format!("{}={text}", Part::Access.name()));
    part(Part::Access, text)
}

/// Transport of FUSE requests between the kernel and the mount.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Use io_uring if it is available, otherwise the FUSE device
    Auto,
    /// Use the FUSE device, /dev/fuse
    Device,
    /// Use io_uring; fail with the reason if it is not available
    Uring,
}

/// When written data and changes of names become durable.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// Data are durable when close returns, changes of names when their call returns
    Close,
    /// Data and changes of names are durable when fsync returns
    Fsync,
}

/// Parses a value of the write threshold.
pub fn write_threshold(text: &str) -> Result<Settings, String> {
    part(Part::WriteThreshold, text)
}

/// Parses a value of the read threshold.
pub fn read_threshold(text: &str) -> Result<Settings, String> {
    part(Part::ReadThreshold, text)
}

/// Parses how long the kernel may cache an entry, in seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=86_400.0).contains(&value) {
        Ok(value)
    } else {
        Err("not a number of seconds from 0 to 86400".to_owned())
    }
}

impl MountOptions {
    /// Makes a policy setting from an option of mount(8). Returns `false` if the policy has no setting called `name`.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        if Part::named(name.as_bytes()).is_err() {
            return Ok(false);
        }
        self.policies.push(policy(&format!("{name}={value}"))?);
        Ok(true)
    }

    /// Returns the client options `options` with the changes that the options of this mount make.
    pub fn options(&self, options: Options) -> Options {
        let mut settings = Settings::default();
        if self.writeback {
            // Write-back caching needs the page cache. Set the access method `page` before all other settings, so that
            // an explicit `access` setting overrides this setting.
            let _ = settings.set(Origin::Mount, Part::Access.name().as_bytes(), b"page");
        }
        let named = [&self.access, &self.write_threshold, &self.read_threshold].into_iter().flatten();
        named.chain(&self.policies).for_each(|more| settings.lay(more));
        let durable = match self.durable {
            None => options.durable,
            Some(Durable::Close) => client::Durable::Close,
            Some(Durable::Fsync) => client::Durable::Fsync,
        };
        Options {
            driver: fuse::driver(),
            policy: settings,
            short_circuit: !self.no_short_circuit,
            negative: if self.no_negative { 0 } else { options.negative },
            durable,
            size_valid: Duration::from_secs_f64(self.attr_timeout),
            ..options
        }
    }

    /// Returns the configuration of the FUSE mount. `source` is the URL of the file system, which the kernel shows.
    pub fn config(&self, source: &str) -> fuse::Config {
        let defaults = fuse::Config::default();
        fuse::Config {
            transport_kind: match self.transport {
                Transport::Auto => fuse::TransportKind::Auto,
                Transport::Device => fuse::TransportKind::Device,
                Transport::Uring => fuse::TransportKind::Uring,
            },
            known_files: self.known_files,
            attrs_valid: Duration::from_secs_f64(self.attr_timeout),
            entry_valid: Duration::from_secs_f64(self.entry_timeout),
            absent_valid: Duration::from_secs_f64(self.absent_timeout),
            writeback: self.writeback,
            read_only: self.read_only,
            privileges: self.powers,
            allow_other: self.allow_other || defaults.allow_other,
            source: source.to_owned(),
            guard: commands::guard::command(),
            ..defaults
        }
    }
}

/// Fails if a Weir file system is mounted at `dir`, unless `over` is set. First detaches a mount whose process was
/// killed.
pub fn must_be_free(dir: &Path, over: bool) -> Result<(), Failure> {
    let failed = |error| Failure::from(error).about(dir.display());
    fuse::detach_dead(dir).map_err(failed)?;
    match fuse::source_at(dir) {
        Ok(Some(source)) if !over => Err(Failure::new(format!("{}: {source} is already mounted there", dir.display()))
            .next(format!("\"weir umount {}\" unmounts it; --over (or -o over) mounts over it", dir.display()))),
        // Ignore an error of the check for an existing mount, such as a missing directory, because the attempt to mount
        // will report the error.
        _ => Ok(()),
    }
}

fn carried(carrier: fuse::TransportKind) -> &'static str {
    match carrier {
        fuse::TransportKind::Uring => "io_uring",
        _ => "the device",
    }
}

/// A mount that this process serves.
pub struct Mounting {
    mounted: fuse::Mounted,
    /// The client owner of this mount. Its value holds the file lock of the client owner, so that no other process uses
    /// this client owner until the mount ends.
    _identity: Option<Identity>,
    dir: PathBuf,
}

impl Mounting {
    /// Mounts the tree below `root` at the directory `dir`. The caller must be inside a tokio runtime.
    pub fn start(
        mount: Mount,
        root: Node,
        dir: &Path,
        config: fuse::Config,
        identity: Option<Identity>,
    ) -> Result<Self, Failure> {
        let mounted = fuse::Mounted::start(mount, root, dir, config).map_err(|error| match error.kind() {
            ErrorKind::Unsupported => Failure::from(error)
                .about("--transport uring")
                .next("use --transport auto, which selects a transport that works"),
            ErrorKind::NotFound => Failure::from(error).about(dir.display()).next("make the directory first"),
            _ => Failure::from(error).about(format_args!("mounting at {}", dir.display())),
        })?;
        let dir = mounted.dir().to_owned();
        tracing::info!(dir = %dir.display(), transport = carried(mounted.transport_kind()), "mounted");
        Ok(Mounting { mounted, _identity: identity, dir })
    }

    /// Returns the name of the transport of FUSE requests, formatted for messages.
    pub fn carried(&self) -> &'static str {
        carried(self.mounted.transport_kind())
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until the mount ends: another process unmounts it, or `stop` completes and this process unmounts it. If
    /// files are open, this process detaches the mount lazily, and the mount ends when the last file is closed. If
    /// `tell` is set, prints a message in this case.
    pub async fn until(mut self, stop: impl Future<Output = ()>, tell: bool) -> Outcome {
        let ended = tokio::select! {
            ended = self.mounted.unmounted() => Some(ended),
            () = stop => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                self.unmount(tell).await?;
                // Another mount namespace may have a copy of this mount. If no process there uses the copy, do not wait
                // for its end.
                self.mounted.unmounted_or_unused().await
            }
        };
        let finished = self.mounted.finish().await;
        let failed = |error| Failure::from(error).about(self.dir.display());
        ended.and(finished).map(|()| Exit::Done).map_err(failed)
    }

    async fn unmount(&self, tell: bool) -> Result<(), Failure> {
        let dir = self.dir.clone();
        let unmounted = tokio::task::spawn_blocking(move || match fuse::unmount(&dir, false) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                if tell {
                    eprintln!(
                        "weir: {} is busy: detached lazily; it ends when the last open file is closed",
                        dir.display()
                    );
                }
                fuse::unmount(&dir, true)
            }
            outcome => outcome,
        });
        match unmounted.await.map_err(Failure::new)? {
            // The error `NotFound` means that another process has unmounted the file system before this process could.
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}
