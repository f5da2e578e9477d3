"""What keeps players and NPCs safe from each other's words. Pure: no sockets, no clock, no model.

`filter` watches what NPCs say, by the rules of a file (`rules`) and those that keep an NPC in its
part (`character`); `redaction` takes out of a player's line what nobody else should ever see;
`injection` notices lines that are meant for the model and not for the NPC.
"""
