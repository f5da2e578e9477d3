"""What the playground page knows of a scene before anybody is in it."""

from npc.cast import OpenScene


def facts(scene: OpenScene) -> dict[str, object]:
    """A scene in `playground.json`: what its file says that is not on the wire. `bounds` are two
    corners, `hearing` a distance; each is null where the file has none.
    """
    space = scene.surroundings
    return {
        "id": scene.id,
        "title": scene.title,
        "instances": scene.allows_instances,
        "events": sorted(scene.events),
        "bounds": [space.bounds.low, space.bounds.high] if space.bounds else None,
        "hearing": space.hearing or None,
    }
