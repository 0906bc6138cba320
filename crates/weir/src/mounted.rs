//! A mount that this process serves: from its start to its end, by whoever ends it.

use crate::failure::{Exit, Failure, Outcome};
use clap::ValueEnum;
use client::{Mount, Node, Options};
use layout::threshold::Rule;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a mount behaves.
#[derive(clap::Args, Clone)]
pub struct How {
    /// How files are read and written: past the page cache, or through it
    #[arg(long, value_enum, default_value_t = Access::Direct)]
    pub access: Access,
    /// Writes that gather to fewer bytes than this go through the mgr, others straight to the iods; 0: all go straight,
    /// max: none does; auto: wherever either has been faster lately
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = write_threshold)]
    pub write_threshold: Rule,
    /// The same for reads
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = threshold)]
    pub read_threshold: u64,
    /// How long attributes are believed before the server is asked again
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub attr_timeout: f64,
    /// How long names are believed
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub entry_timeout: f64,
    /// How long it is believed that a name is not there
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub absent_timeout: f64,
    /// What carries requests from the kernel: rings of io_uring where root has switched them on ("echo Y >
    /// /sys/module/fuse/parameters/enable_uring", Linux 6.14), which small requests gain most from, or the device
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Change nothing
    #[arg(long)]
    pub read_only: bool,
    /// Let other users use it; root's mounts are for all
    #[arg(long)]
    pub allow_other: bool,
}

/// How files are read and written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache: cheapest for large requests, and others see what is written as soon as it is synced
    Direct,
    /// Through the page cache: cheapest for small reads
    Page,
}

/// What carries requests from the kernel.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Rings where there can be any, the device elsewhere
    Auto,
    /// The classic device
    Device,
    /// Rings of io_uring, or an error that says why not
    Uring,
}

/// A write threshold as users write it.
pub fn write_threshold(text: &str) -> Result<Rule, String> {
    match text {
        "auto" => Ok(Rule::Auto),
        _ => threshold(text).map(Rule::Fixed).map_err(|why| why + ", nor auto"),
    }
}

/// A threshold as users write it.
pub fn threshold(text: &str) -> Result<u64, String> {
    match text {
        "max" => Ok(layout::threshold::ALWAYS_MGR),
        _ => layout::policy::parse_size(text).ok_or_else(|| "it is no size, such as 64K, nor max".to_owned()),
    }
}

/// A lifetime as users write it.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    if (0.0..=86_400.0).contains(&value) { Ok(value) } else { Err("it is not from 0 to 86400".to_owned()) }
}

impl How {
    /// The same in the words of the client.
    pub fn options(&self, options: Options) -> Options {
        Options { write_threshold: self.write_threshold, read_threshold: self.read_threshold, ..options }
    }

    /// The same in the words of the mount, for a file system at this URL.
    pub fn config(&self, source: &str) -> fuse::Config {
        let defaults = fuse::Config::default();
        fuse::Config {
            access: match self.access {
                Access::Direct => fuse::Access::Direct,
                Access::Page => fuse::Access::Page,
            },
            carrier: match self.transport {
                Transport::Auto => fuse::Carrier::Auto,
                Transport::Device => fuse::Carrier::Device,
                Transport::Uring => fuse::Carrier::Uring,
            },
            attrs_valid: Duration::from_secs_f64(self.attr_timeout),
            entry_valid: Duration::from_secs_f64(self.entry_timeout),
            absent_valid: Duration::from_secs_f64(self.absent_timeout),
            read_only: self.read_only,
            allow_other: self.allow_other || defaults.allow_other,
            source: source.to_owned(),
            ..defaults
        }
    }
}

fn carried(carrier: fuse::Carrier) -> &'static str {
    match carrier {
        fuse::Carrier::Uring => "io_uring",
        _ => "the device",
    }
}

/// A mount that this process serves.
pub struct Mounting {
    mounted: fuse::Mounted,
    dir: PathBuf,
}

impl Mounting {
    /// Mounts what is below `root` at a directory. Must run inside a tokio runtime.
    pub fn start(mount: Mount, root: Node, dir: &Path, config: fuse::Config) -> Result<Self, Failure> {
        let mounted = fuse::Mounted::start(mount, root, dir, config).map_err(|error| match error.kind() {
            ErrorKind::Unsupported => {
                Failure::from(error).about("--transport uring").next("or leave it to --transport auto")
            }
            ErrorKind::NotFound => Failure::from(error).about(dir.display()).next("make the directory first"),
            _ => Failure::from(error).about(format_args!("mounting at {}", dir.display())),
        })?;
        let dir = mounted.dir().to_owned();
        tracing::info!("mounted at {}; requests come by {}", dir.display(), carried(mounted.carrier()));
        Ok(Mounting { mounted, dir })
    }

    /// What carries its requests, for people.
    pub fn carried(&self) -> &'static str {
        carried(self.mounted.carrier())
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns when it is unmounted: by somebody, or by this when `stop` comes first. While files of it are open, it vanishes
    /// from its place and ends when the last one is closed; `tell` says so to the user.
    pub async fn until(mut self, stop: impl Future<Output = ()>, tell: bool) -> Outcome {
        let ended = tokio::select! {
            ended = self.mounted.unmounted() => Some(ended),
            () = stop => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                self.unmount(tell).await?;
                // Other namespaces may have it mounted as well, without using it.
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
                    eprintln!("weir: {} is in use; it vanishes, and ends when its files are closed", dir.display());
                }
                fuse::unmount(&dir, true)
            }
            outcome => outcome,
        });
        match unmounted.await.map_err(Failure::new)? {
            // Somebody was quicker.
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}
