//! NFSv4.0 to NFSv4.2 messages (RFC 7863, 8276, 8435) under the names of the RFCs.
