//! The places where policies are set, and which of them take effect.

use super::{Part, Policy, Settings};

/// A place where parts of a policy are set; later places in this order override earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// The defaults of the layout driver.
    Driver,
    /// The configuration of the mgr, for the whole file system or for an export.
    Server,
    /// The extended attributes of the directory, either set there or inherited from its parent when it was created.
    Directory,
    /// The mount options.
    Mount,
    /// The environment of the mounting process (`WEIR_POLICY`).
    Environment,
    /// The extended attributes of the file itself.
    File,
    /// The open itself: a hint of the program, or `O_DIRECT`.
    Open,
}

impl Origin {
    /// All places, in the order of precedence.
    pub const ALL: [Origin; 7] = [
        Origin::Driver,
        Origin::Server,
        Origin::Directory,
        Origin::Mount,
        Origin::Environment,
        Origin::File,
        Origin::Open,
    ];

    /// Returns the name.
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

    /// Returns the phrase that follows "set" in messages.
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

/// The settings of every place except the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// Settings of [`Origin::Server`].
    pub server: Settings,
    /// Settings of [`Origin::Directory`].
    pub directory: Settings,
    /// Settings of [`Origin::Mount`].
    pub mount: Settings,
    /// Settings of [`Origin::Environment`].
    pub environment: Settings,
    /// Settings of [`Origin::File`].
    pub file: Settings,
    /// Settings of [`Origin::Open`].
    pub open: Settings,
}

impl Layers {
    /// Returns the settings of a place; `None` for the driver, whose policy is complete.
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

/// The effective policy, with the origin of each part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effective {
    /// The policy in effect.
    pub policy: Policy,
    origins: [Origin; Part::ALL.len()],
}

impl Effective {
    /// Returns the origin of a part.
    pub fn origin(&self, part: Part) -> Origin {
        self.origins[part as usize]
    }

    /// Returns every part with its text and its origin, in display order.
    pub fn rows(&self) -> impl Iterator<Item = (Part, String, Origin)> + '_ {
        Part::ALL.iter().map(|part| (*part, self.policy.get(*part), self.origin(*part)))
    }
}

/// Returns the effective policy: each part has the value of the last place that sets it and may set it.
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
