//! Where bytes live: distributions, layout kinds and their body codec, and the policy record.
