//! Where the values of a policy come from, and which of them count.

use super::{Part, Policy, Settings};

/// A place where parts of a policy are set; of several the last in this order counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// What the driver of a layout does without any policy.
    Driver,
    /// The configuration of the mgr, for all of the file system or for an export.
    Server,
    /// The extended attributes of the directory, its own or those that it took from its parent when it was made.
    Directory,
    /// The options of a mount.
    Mount,
    /// The environment of the process that mounts (`WEIR_POLICY`).
    Environment,
    /// The extended attributes of the file itself.
    File,
    /// Who opens the file: a hint of the program, or `O_DIRECT`.
    Open,
}

impl Origin {
    /// All of them, in the order in which they count.
    pub const ALL: [Origin; 7] = [
        Origin::Driver,
        Origin::Server,
        Origin::Directory,
        Origin::Mount,
        Origin::Environment,
        Origin::File,
        Origin::Open,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Driver => "driver",
            Origin::Server => "server",
            Origin::Directory => "directory",
            Origin::Mount => "mount",
            Origin::Environment => "environment",
            Origin::File => "file",
            Origin::Open => "open",
        }
    }

    /// Where that is, behind "set".
    pub(super) fn place(self) -> &'static str {
        match self {
            Origin::Driver => "in a driver",
            Origin::Server => "in the configuration of the mgr",
            Origin::Directory => "for a directory",
            Origin::Mount => "for a mount",
            Origin::Environment => "in the environment",
            Origin::File => "for a file",
            Origin::Open => "for an open file",
        }
    }
}

/// What every place but the driver sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// Of [`Origin::Server`].
    pub server: Settings,
    /// Of [`Origin::Directory`].
    pub directory: Settings,
    /// Of [`Origin::Mount`].
    pub mount: Settings,
    /// Of [`Origin::Environment`].
    pub environment: Settings,
    /// Of [`Origin::File`].
    pub file: Settings,
    /// Of [`Origin::Open`].
    pub open: Settings,
}

impl Layers {
    /// What an origin sets; the driver sets nothing, it has everything.
    fn of(&self, origin: Origin) -> Option<&Settings> {
        match origin {
            Origin::Driver => None,
            Origin::Server => Some(&self.server),
            Origin::Directory => Some(&self.directory),
            Origin::Mount => Some(&self.mount),
            Origin::Environment => Some(&self.environment),
            Origin::File => Some(&self.file),
            Origin::Open => Some(&self.open),
        }
    }
}

/// A policy in force, and where each part of it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effective {
    /// What holds.
    pub policy: Policy,
    origins: [Origin; Part::ALL.len()],
}

impl Effective {
    /// Where a part comes from.
    pub fn origin(&self, part: Part) -> Origin {
        self.origins[part as usize]
    }

    /// Every part with its text and where that comes from, in the order to show them.
    pub fn rows(&self) -> impl Iterator<Item = (Part, String, Origin)> + '_ {
        Part::ALL.iter().map(|part| (*part, self.policy.get(*part), self.origin(*part)))
    }
}

/// The policy in force: of each part the value of the last place that sets it and may.
pub fn merge(driver: &Policy, layers: &Layers) -> Effective {
    let mut effective = Effective { policy: *driver, origins: [Origin::Driver; Part::ALL.len()] };
    for origin in Origin::ALL {
        let Some(settings) = layers.of(origin) else { continue };
        for part in settings.parts().filter(|part| part.is_set_by(origin)) {
            effective.policy.take(part, settings);
            effective.origins[part as usize] = origin;
        }
    }
    effective
}
