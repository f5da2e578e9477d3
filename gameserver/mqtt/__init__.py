"""World events in, what NPCs do out, over an MQTT broker; see docs/mqtt.md."""
